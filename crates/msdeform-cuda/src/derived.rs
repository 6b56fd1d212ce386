//! Numbers that a variant works out for its kernels: fields of their parameter, by name.
//!
//! The host alone computes them. The device's struct is declared from the same list (`MSDA_DERIVED` of `params.cuh`), so a
//! kernel that reads a number which the host does not compute does not compile.

/// Fields in the order in which they lie in the parameter, a word or more each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Derived {
    fields: Vec<(Field, &'static str)>,
}

/// What a field is on the device.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Field {
    /// An `int`.
    Count(i32),
    /// A `long long`: bytes, or something that may be as many.
    Size(u64),
    /// An `int` for each level. A `float` is the `int` with its bits.
    Levels(Vec<i32>),
}

impl Field {
    const fn macro_name(&self) -> &'static str {
        match self {
            Self::Count(_) => "COUNT",
            Self::Size(_) => "SIZE",
            Self::Levels(_) => "COUNT_OF_LEVELS",
        }
    }
}

impl Derived {
    /// The most words that all fields of a call take.
    pub(crate) const MOST_WORDS: usize = 80;

    /// Adds a number that the kernels count with, an `int`.
    pub fn count(&mut self, name: &'static str, count: usize) -> Result<(), String> {
        let count = narrow(name, count)?;
        self.fields.push((Field::Count(count), name));
        Ok(())
    }

    /// Adds bytes, or an offset into the workspace.
    pub fn size(&mut self, name: &'static str, size: usize) {
        self.fields.push((Field::Size(size as u64), name));
    }

    /// Adds a number for each level.
    pub fn levels(
        &mut self,
        name: &'static str,
        counts: impl IntoIterator<Item = usize>,
    ) -> Result<(), String> {
        let counts: Result<_, String> =
            counts.into_iter().map(|count| narrow(name, count)).collect();
        self.fields.push((Field::Levels(counts?), name));
        Ok(())
    }

    /// Adds a number that the kernels find as the bits of a `float`.
    pub fn float(&mut self, name: &'static str, number: f32) {
        self.fields.push((Field::Count(number.to_bits().cast_signed()), name));
    }

    /// Adds such a number for each level.
    pub fn floats(&mut self, name: &'static str, numbers: impl IntoIterator<Item = f32>) {
        let bits = numbers.into_iter().map(|number| number.to_bits().cast_signed());
        self.fields.push((Field::Levels(bits.collect()), name));
    }

    /// Begins with a number that the kernels count with.
    pub fn of_count(name: &'static str, count: usize) -> Result<Self, String> {
        let mut derived = Self::default();
        derived.count(name, count)?;
        Ok(derived)
    }

    /// A number by its name, for tests.
    pub fn get(&self, name: &str) -> Option<u64> {
        self.fields.iter().find(|(_, known)| *known == name).and_then(|(field, _)| match field {
            Field::Count(count) => u64::try_from(*count).ok(),
            Field::Size(size) => Some(*size),
            Field::Levels(_) => None,
        })
    }

    /// The fields as the device declares them; nothing where there are none.
    pub(crate) fn declaration(&self) -> Option<String> {
        let declared = |(field, name): &(Field, &str)| format!("{}({name})", field.macro_name());
        (!self.fields.is_empty()).then(|| self.fields.iter().map(declared).collect())
    }

    /// The numbers as they lie in the parameter.
    pub fn words(&self) -> Vec<u64> {
        let mut words = Vec::new();
        for (field, _) in &self.fields {
            match field {
                Field::Count(count) => words.push(u64::from(count.cast_unsigned())),
                Field::Size(size) => words.push(*size),
                Field::Levels(counts) => words.extend(counts.chunks(2).map(|pair| {
                    let half =
                        |at: usize| u64::from(pair.get(at).copied().unwrap_or(0).cast_unsigned());
                    half(1) << 32 | half(0)
                })),
            }
        }
        words
    }
}

fn narrow(name: &'static str, count: usize) -> Result<i32, String> {
    i32::try_from(count)
        .map_err(|_| format!("{count} {}; it takes at most 2^31 - 1", name.replace('_', " ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_words_in_their_order() {
        let mut derived = Derived::of_count("lanes", 7).unwrap();
        derived.size("entries_at", 1 << 40);
        derived.levels("first_tile", [1, 2, 3]).unwrap();
        assert_eq!(derived.words(), [7, 1 << 40, 2 << 32 | 1, 3]);
        assert_eq!(
            derived.declaration().as_deref(),
            Some("COUNT(lanes)SIZE(entries_at)COUNT_OF_LEVELS(first_tile)")
        );
        assert_eq!((derived.get("lanes"), derived.get("entries_at")), (Some(7), Some(1 << 40)));
        assert_eq!(Derived::default().declaration(), None);
    }

    #[test]
    fn a_number_that_a_kernel_cannot_count_with_is_refused() {
        let refused = Derived::of_count("slab_tiles", 1 << 31).unwrap_err();
        assert_eq!(refused, "2147483648 slab tiles; it takes at most 2^31 - 1");
    }
}
