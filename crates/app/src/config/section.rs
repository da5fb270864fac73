//! Sections of the configuration: structs whose fields are read from variables.

/// Declares a struct that is a [`Section`](crate::config::Section), or with `impl` makes one of a struct that
/// is declared elsewhere.
///
/// A field `name: Type = VARIABLE` is read from that variable, and `name: Type = VARIABLE => convert` from a
/// value that `convert` takes as its argument. A field without a variable is a section of its own. After the
/// fields were read, the function behind `then` notes what does not fit together.
macro_rules! section {
    (@read $reader:ident) => { $crate::config::reader::Section::read($reader) };
    (@read $reader:ident $knob:ident) => { $reader.get(&$crate::config::knobs::$knob) };
    (@read $reader:ident $knob:ident $convert:expr) => {
        $reader.get(&$crate::config::knobs::$knob).map($convert)
    };
    (impl $name:ty { $($field:ident $(= $knob:ident $(=> $convert:expr)?)?,)* } $(then $check:path)?) => {
        impl $crate::config::reader::Section for $name {
            fn read(reader: &mut $crate::config::reader::Reader) -> Option<Self> {
                $(let $field = section!(@read reader $($knob $($convert)?)?);)*
                $($check(reader);)?
                Some(Self { $($field: $field?,)* })
            }
        }
    };
    (
        $(#[$meta:meta])* pub struct $name:ident {
            $($(#[$doc:meta])* pub $field:ident: $type:ty $(= $knob:ident $(=> $convert:expr)?)?,)*
        } $(then $check:path)?
    ) => {
        $(#[$meta])*
        pub struct $name { $($(#[$doc])* pub $field: $type,)* }

        section! { impl $name { $($field $(= $knob $(=> $convert)?)?,)* } $(then $check)? }
    };
}
pub(super) use section;
