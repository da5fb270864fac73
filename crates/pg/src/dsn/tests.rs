//! Both forms of a connection string, and what is refused or hidden.

use tokio_postgres::config::SslMode;

use super::*;

#[test]
fn search_path_and_sslmode_of_a_url_reach_the_driver() {
    let dsn = Dsn::parse(
        "postgres://me:s3cret@db:5433/galaxy?search_path=notification&sslmode=verify-full&application_name=x",
    )
    .expect("parses");
    assert_eq!(dsn.config().get_options(), Some("-c search_path=notification"));
    assert_eq!(dsn.config().get_ssl_mode(), SslMode::Require);
    assert_eq!(dsn.config().get_application_name(), Some("x"));
    assert_eq!(
        dsn.to_string(),
        "postgres://me:****@db:5433/galaxy?search_path=notification&sslmode=verify-full&application_name=x"
    );
}

#[test]
fn options_of_the_string_are_kept() {
    let dsn =
        Dsn::parse("postgres://me@db/galaxy?options=-c%20geqo%3Doff&search_path=a,%20b").expect("parses");
    assert_eq!(dsn.config().get_options(), Some("-c geqo=off -c search_path=a,\\ b"));
}

#[test]
fn the_password_is_shown_nowhere() {
    for text in ["postgres://me:s3cret@db/galaxy", "host=db user=me password=s3cret dbname=galaxy"] {
        let dsn = Dsn::parse(text).expect("parses");
        assert_eq!(
            format!("{dsn} {dsn:?}"),
            "postgres://me:****@db:5432/galaxy postgres://me:****@db:5432/galaxy"
        );
    }
    for text in [
        "postgres://me:s3cret@db:port/galaxy",
        "me:s3cret",
        "postgres://me:s3cret@db/x?sslmode=often",
        "postgres://me:pa?s3cret@db/x",
        "host=db password='s3cret",
        "host=db password=my s3cret",
        "host=db password=my s3cret=1",
        "host=db password=s3cret timezone=UTC",
        "postgres://me:p@s3cret@db/x",
        "postgres://me:p@/s3cret@db/x",
        "postgres://me:p@a/x,postgres://me:s3cret@b/x",
    ] {
        let error = Dsn::parse(text).expect_err("does not parse");
        assert!(!format!("{error} {error:?}").contains("s3cret"), "{error:?}");
    }
}

#[test]
fn each_mode_asks_the_driver_for_what_it_promises_and_no_other_is_taken() {
    for (mode, of_driver) in [
        ("disable", SslMode::Disable),
        ("allow", SslMode::Prefer),
        ("prefer", SslMode::Prefer),
        ("require", SslMode::Require),
        ("verify-ca", SslMode::Require),
        ("verify-full", SslMode::Require),
    ] {
        for text in [format!("postgres://db/x?sslmode={mode}"), format!("host=db sslmode = '{mode}'")] {
            let dsn = Dsn::parse(&text).expect("parses");
            assert_eq!(dsn.config().get_ssl_mode(), of_driver, "{text}");
            assert_eq!(dsn.tls().expect("it can be set up").is_some(), mode != "disable", "{text}");
        }
    }
    assert_eq!(Dsn::parse("postgres://db/x").expect("parses").config().get_ssl_mode(), SslMode::Disable);
    let named_so = "host=db user=sslmode password='sslmode=require' dbname=x";
    assert_eq!(Dsn::parse(named_so).expect("parses").config().get_ssl_mode(), SslMode::Disable);
    let error = Dsn::parse("host=db sslmode=verify").expect_err("it is none").to_string();
    assert_eq!(error, "its sslmode must be one of disable, allow, prefer, require, verify-ca, verify-full");
}

#[test]
fn certificates_without_a_mode_that_uses_them_are_refused() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/root.pem");
    for text in [
        format!("host=db sslrootcert={root}"),
        format!("host=db sslrootcert={root} sslmode=prefer"),
        "host=db sslrootcert=system sslmode=disable".to_owned(),
        format!("host=db sslcert={root} sslkey={root}"),
        format!("host=db sslcert={root} sslmode=require"),
    ] {
        assert!(matches!(Dsn::parse(&text), Err(DsnError::Parameter(_))), "{text}");
    }
    let system = Dsn::parse("host=db sslrootcert=system").expect("parses");
    assert_eq!(system.to_string(), "postgres://@db:5432/?sslmode=verify-full&sslrootcert=system");
}

#[test]
fn both_forms_take_the_same_parameters() {
    let of_url = Dsn::parse(
        "postgres://me:p%20w@a:1,b:2/x?search_path=s&target_session_attrs=primary&connect_timeout=7&keepalives=0\
         &keepalives_count=3&tcp_user_timeout=9000&fallback_application_name=n&client_encoding=UTF8&gssencmode=prefer",
    );
    let of_words = Dsn::parse(
        "host=a,b port=1,2 user=me password='p w' dbname=x search_path=s target_session_attrs=primary connect_timeout=7 \
         keepalives=0 keepalives_count=3 tcp_user_timeout=9000 fallback_application_name=n client_encoding=UTF8 gssencmode=prefer",
    );
    let (of_url, of_words) = (of_url.expect("parses"), of_words.expect("parses"));
    assert!(of_url.config() == of_words.config(), "{:?}\n{:?}", of_url.config(), of_words.config());
    assert_eq!(of_url.to_string(), of_words.to_string());
    assert_eq!(of_url.config().get_keepalives_retries(), Some(3));
    assert!(!of_url.config().get_keepalives());
    assert_eq!(of_url.config().get_application_name(), Some("n"));
    for wrong in ["client_encoding=LATIN1", "gssencmode=require", "target_session_attrs=master"] {
        assert!(matches!(Dsn::parse(&format!("host=db {wrong}")), Err(DsnError::Parameter(_))), "{wrong}");
    }
}

#[test]
fn an_at_sign_in_a_password_is_taken_if_it_is_encoded_and_explained_if_not() {
    let dsn = Dsn::parse("postgres://me:p%40ss@db/x").expect("parses");
    assert_eq!(dsn.config().get_password(), Some(&b"p@ss"[..]));
    let error = Dsn::parse("postgres://me:p@ss@db/x").expect_err("has a strange host");
    assert!(error.to_string().contains("must be written %40"), "{error}");
}

#[test]
fn certificates_are_read_with_the_string_that_names_them() {
    let dsn = |path: &str| Dsn::parse(&format!("postgres://db/x?sslmode=require&sslrootcert={path}"));
    let roots = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/root.pem");
    let shown = dsn(roots).expect("parses").to_string();
    assert_eq!(shown, format!("postgres://@db:5432/x?sslmode=require&sslrootcert={roots}"));
    for wrong in ["/nowhere/root.pem", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")] {
        let error = dsn(wrong).expect_err("there are no certificates");
        assert!(matches!(&error, DsnError::File { path, .. } if path == wrong), "{error:?}");
    }
}

#[test]
fn a_string_with_more_ports_or_addresses_than_hosts_is_refused() {
    for text in ["host=a,b port=1,2,3", "host=a,b,c port=1,2", "host=a,b hostaddr=10.0.0.1"] {
        assert!(matches!(Dsn::parse(text), Err(DsnError::Parameter(_))), "{text}");
    }
}

#[test]
fn an_unknown_parameter_is_named_and_those_of_a_clients_own_pool_are_ignored() {
    let dsn = Dsn::parse("postgres://me@db/x?pool_max_conns=10&sslmode=disable&pool_min_conns=1");
    assert_eq!(dsn.expect("parses").config().get_hosts().len(), 1);
    let error = Dsn::parse("postgres://me@db/x?timezone=UTC").expect_err("the driver does not know it");
    let said = error.to_string();
    assert!(said.starts_with("its parameter timezone is not known; known are application_name, "), "{said}");
    let error = Dsn::parse("host=db user=me passfile=/x").expect_err("it is not read").to_string();
    assert!(error.contains("passfile is not known"), "{error}");
    // The text after a ? in a password looks like a parameter.
    let error = Dsn::parse("postgres://me:pa?S3cret@db/x").expect_err("has a strange host");
    assert!(!ambient::error_chain(&error).contains("S3cret"), "{error}");
}

#[test]
fn what_is_shown_is_what_is_in_effect() {
    for attribute in ["read-write", "read-only", "primary", "standby", "prefer-standby"] {
        let text = format!(
            "postgres://me@a:1,b:2/x?search_path=s&sslmode=verify-ca&target_session_attrs={attribute}&load_balance_hosts=random\
             &connect_timeout=7&options=-c geqo=off"
        );
        assert_eq!(Dsn::parse(&text).expect("parses").to_string(), text);
    }
}
