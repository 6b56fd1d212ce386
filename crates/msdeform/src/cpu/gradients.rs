//! Where a backward pass writes.

use crate::TensorViewMut;

/// Where the gradients of a backward pass go. Any subset: what is not asked for is not computed.
///
/// ```
/// use msdeform::GradientsMut;
///
/// let (mut value, mut weights) = (vec![0f32; 12], vec![0f32; 4]);
/// let gradients = GradientsMut::new().value(&mut value).weights(&mut weights);
/// assert!(gradients.locations.is_none());
/// ```
#[derive(Debug, Default)]
pub struct GradientsMut<'a> {
    /// Gradient of the value tensor, in its layout and format.
    pub value: Option<TensorViewMut<'a>>,
    /// Gradient of the sampling locations.
    pub locations: Option<TensorViewMut<'a>>,
    /// Gradient of the attention weights.
    pub weights: Option<TensorViewMut<'a>>,
}

impl<'a> GradientsMut<'a> {
    /// Asks for no gradient yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks for the gradient of the value tensor.
    #[must_use]
    pub fn value(mut self, to: impl Into<TensorViewMut<'a>>) -> Self {
        self.value = Some(to.into());
        self
    }

    /// Asks for the gradient of the sampling locations.
    #[must_use]
    pub fn locations(mut self, to: impl Into<TensorViewMut<'a>>) -> Self {
        self.locations = Some(to.into());
        self
    }

    /// Asks for the gradient of the attention weights.
    #[must_use]
    pub fn weights(mut self, to: impl Into<TensorViewMut<'a>>) -> Self {
        self.weights = Some(to.into());
        self
    }
}

/// Where the gradients of a backward pass from offsets go. Any subset: what is not asked for is not computed.
#[derive(Debug, Default)]
pub struct OffsetGradientsMut<'a> {
    /// Gradient of the value tensor, in its layout and format.
    pub value: Option<TensorViewMut<'a>>,
    /// Gradient of the references, summed over heads and samples.
    pub references: Option<TensorViewMut<'a>>,
    /// Gradient of the offsets.
    pub offsets: Option<TensorViewMut<'a>>,
    /// Gradient of the logits.
    pub logits: Option<TensorViewMut<'a>>,
}

impl<'a> OffsetGradientsMut<'a> {
    /// Asks for no gradient yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks for the gradient of the value tensor.
    #[must_use]
    pub fn value(mut self, to: impl Into<TensorViewMut<'a>>) -> Self {
        self.value = Some(to.into());
        self
    }

    /// Asks for the gradient of the references.
    #[must_use]
    pub fn references(mut self, to: impl Into<TensorViewMut<'a>>) -> Self {
        self.references = Some(to.into());
        self
    }

    /// Asks for the gradient of the offsets.
    #[must_use]
    pub fn offsets(mut self, to: impl Into<TensorViewMut<'a>>) -> Self {
        self.offsets = Some(to.into());
        self
    }

    /// Asks for the gradient of the logits.
    #[must_use]
    pub fn logits(mut self, to: impl Into<TensorViewMut<'a>>) -> Self {
        self.logits = Some(to.into());
        self
    }
}
