//! A new migration file must make the crate that embeds it build again.
fn main() {
    println!("cargo:rerun-if-changed=../../migrations");
}
