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
pub(crate) struct Sizes(HashMap<Symbol, i64>);

impl Sizes {
    pub(crate) fn number(&self, dim: &Dim) -> Option<i64> {
        dim.number(|symbol| self.0.get(&symbol).copied())
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

    /// Lets a size be a number, if it has none yet and is open in a single symbol.
    pub(crate) fn set(&mut self, dim: &Dim, number: usize) {
        let open: Vec<Symbol> =
            dim.symbols.iter().copied().filter(|s| !self.0.contains_key(s)).collect();
        let Ok(number) = i64::try_from(number) else { return };
        let [symbol] = open[..] else { return };
        let rest =
            dim.number(|one| if one == symbol { Some(1) } else { self.0.get(&one).copied() });
        if let Some(rest) = rest.filter(|&rest| rest > 0 && number % rest == 0) {
            self.0.insert(symbol, number / rest);
        }
    }

    pub(crate) fn set_all(&mut self, dims: &Dims, shape: &[usize]) {
        dims.iter().zip(shape).for_each(|(dim, &size)| self.set(dim, size));
    }
}
