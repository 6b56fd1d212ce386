//! Enumerations whose variants have names: on the command line, in files, in records and in the lines of cases.

/// Declares such an enumeration; the literal is what an error calls it. The first variant is the default.
macro_rules! named {
    ($(#[$about:meta])* $type:ident $what:literal {
        $($(#[$why:meta])* $variant:ident $name:literal),* $(,)?
    }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $type { $($(#[$why])* $variant),* }

        impl $type {
            /// All of them, the plainest first.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }
        }

        impl Default for $type {
            fn default() -> Self {
                Self::ALL[0]
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }

        impl std::str::FromStr for $type {
            type Err = String;

            fn from_str(name: &str) -> Result<Self, String> {
                let found = Self::ALL.iter().copied().find(|kind| kind.name() == name);
                found.ok_or_else(|| {
                    let known: Vec<&str> = Self::ALL.iter().map(|kind| kind.name()).collect();
                    format!("unknown {} `{name}`; known: {}", $what, known.join(", "))
                })
            }
        }
    };
}

pub(crate) use named;
