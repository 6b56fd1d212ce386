//! Sizes that may not be numbers: a factor times symbols.

use std::collections::HashMap;

/// A size that a model leaves open.
pub(crate) type Symbol = u32;

/// Symbols of one product, at most; beyond, a size is just not known.
const MOST_SYMBOLS: usize = 8;

/// A product of a number and symbols.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Dim {
    factor: i64,
    /// Sorted.
    symbols: Vec<Symbol>,
}

impl From<i64> for Dim {
    fn from(factor: i64) -> Self {
        Self { factor, symbols: Vec::new() }
    }
}

impl From<usize> for Dim {
    fn from(size: usize) -> Self {
        i64::try_from(size).unwrap_or(i64::MAX).into()
    }
}

pub(crate) type Dims = Vec<Dim>;

impl Dim {
    /// A size that does not follow from others, until it has a symbol of its own.
    pub(crate) fn unknown() -> Self {
        Self::symbol(Symbol::MAX)
    }

    pub(crate) fn is_unknown(&self) -> bool {
        self.symbols.contains(&Symbol::MAX)
    }

    pub(crate) fn symbol(symbol: Symbol) -> Self {
        Self { factor: 1, symbols: vec![symbol] }
    }

    /// The number, if it is one.
    pub(crate) fn known(&self) -> Option<i64> {
        self.symbols.is_empty().then_some(self.factor)
    }

    /// The same as a size.
    pub(crate) fn size(&self) -> Option<usize> {
        self.known().and_then(|number| usize::try_from(number).ok())
    }

    /// The symbol, if it is one and nothing else.
    pub(crate) fn single(&self) -> Option<Symbol> {
        match self.symbols[..] {
            [symbol] if self.factor == 1 => Some(symbol),
            _ => None,
        }
    }

    pub(crate) fn symbols(&self) -> &[Symbol] {
        &self.symbols
    }

    pub(crate) fn times(&self, other: &Self) -> Option<Self> {
        let factor = self.factor.checked_mul(other.factor)?;
        let mut symbols = [&self.symbols[..], &other.symbols].concat();
        symbols.sort_unstable();
        (symbols.len() <= MOST_SYMBOLS).then_some(Self { factor, symbols })
    }

    /// The quotient, where it is another product.
    pub(crate) fn over(&self, other: &Self) -> Option<Self> {
        if other.factor == 0 || self.factor.checked_rem(other.factor)? != 0 {
            return None;
        }
        let mut symbols = self.symbols.clone();
        for symbol in &other.symbols {
            let at = symbols.iter().position(|one| one == symbol)?;
            symbols.remove(at);
        }
        Some(Self { factor: self.factor / other.factor, symbols })
    }

    /// The number, once the symbols have theirs.
    pub(crate) fn number(&self, of: impl Fn(Symbol) -> Option<i64>) -> Option<i64> {
        self.symbols
            .iter()
            .try_fold(self.factor, |product, &symbol| product.checked_mul(of(symbol)?))
    }

    /// As people read it.
    pub(crate) fn text(&self, name: impl Fn(Symbol) -> String) -> String {
        let mut parts: Vec<String> = self.symbols.iter().map(|&symbol| name(symbol)).collect();
        if self.factor != 1 || parts.is_empty() {
            parts.insert(0, self.factor.to_string());
        }
        parts.join("*")
    }
}

/// The product of sizes.
pub(crate) fn product<'a>(dims: impl IntoIterator<Item = &'a Dim>) -> Option<Dim> {
    dims.into_iter().try_fold(Dim::from(1i64), |product, dim| product.times(dim))
}

/// The numbers that open sizes have in one run. More of them become known while it runs: a tensor that is there has a
/// shape.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sizes {
    symbols: HashMap<Symbol, i64>,
    /// Whole numbers of tensors that no product of sizes is.
    tensors: HashMap<String, Vec<i64>>,
    /// A size for which the run takes a smaller one, in all of its multiples.
    reduced: Option<[i64; 2]>,
}

impl Sizes {
    /// Takes a smaller size wherever the model has this one or a multiple.
    pub(crate) fn reduce(&mut self, from: usize, to: usize) {
        self.reduced = i64::try_from(from).ok().zip(i64::try_from(to).ok()).map(|(a, b)| [a, b]);
    }

    /// The same numbers, with the model's own size instead of a smaller one.
    pub(crate) fn in_full(&self) -> Self {
        // Numbers of tensors were learned with the smaller size.
        let tensors = if self.reduced.is_some() { HashMap::new() } else { self.tensors.clone() };
        Self { symbols: self.symbols.clone(), tensors, reduced: None }
    }

    /// Learns the open sizes that another run has found.
    pub(crate) fn adopt(&mut self, other: Self) {
        self.symbols = other.symbols;
    }

    pub(crate) fn number(&self, dim: &Dim) -> Option<i64> {
        let number = dim.number(|symbol| self.symbols.get(&symbol).copied())?;
        Some(match self.reduced {
            Some([from, to]) if number > 0 && number % from == 0 => number / from * to,
            _ => number,
        })
    }

    pub(crate) fn size(&self, dim: &Dim) -> Option<usize> {
        self.number(dim).and_then(|number| usize::try_from(number).ok())
    }

    pub(crate) fn shape(&self, dims: &Dims) -> Option<Vec<usize>> {
        dims.iter().map(|dim| self.size(dim)).collect()
    }

    /// The same sizes, with numbers where they have one.
    pub(crate) fn known(&self, dims: &Dims) -> Dims {
        dims.iter().map(|dim| self.number(dim).map_or_else(|| dim.clone(), Dim::from)).collect()
    }

    /// The whole numbers of a tensor, of which the graph tells the first ones.
    pub(crate) fn numbers(&self, name: &str, told: Option<&Dims>) -> Option<Dims> {
        let dims = told.map(|dims| self.known(dims));
        if dims.as_ref().is_some_and(|dims| dims.iter().all(|dim| dim.known().is_some())) {
            return dims;
        }
        let found = self.tensors.get(name);
        found.map(|numbers| numbers.iter().map(|&number| number.into()).collect()).or(dims)
    }

    pub(crate) fn tensor(&self, name: &str) -> Option<&[i64]> {
        self.tensors.get(name).map(Vec::as_slice)
    }

    pub(crate) fn set_numbers(&mut self, name: &str, numbers: Vec<i64>) {
        self.tensors.insert(name.to_owned(), numbers);
    }

    /// Lets a size be a number, if it has none yet and is open in a single symbol.
    pub(crate) fn set(&mut self, dim: &Dim, number: usize) {
        let is_open = |symbol: &Symbol| !self.symbols.contains_key(symbol);
        let open: Vec<Symbol> = dim.symbols.iter().copied().filter(is_open).collect();
        let Ok(number) = i64::try_from(number) else { return };
        let [symbol] = open[..] else { return };
        let rest =
            dim.number(|one| if one == symbol { Some(1) } else { self.symbols.get(&one).copied() });
        if let Some(rest) = rest.filter(|&rest| rest > 0 && number % rest == 0) {
            self.symbols.insert(symbol, number / rest);
        }
    }

    pub(crate) fn set_all(&mut self, dims: &Dims, shape: &[usize]) {
        dims.iter().zip(shape).for_each(|(dim, &size)| self.set(dim, size));
    }

    /// Lets every symbol of a size that has none yet be a number, in turn.
    pub(crate) fn set_symbols(&mut self, dim: &Dim, numbers: &[i64]) {
        for (&symbol, &number) in dim.symbols.iter().zip(numbers.iter().cycle()) {
            self.symbols.entry(symbol).or_insert(number);
        }
    }
}
