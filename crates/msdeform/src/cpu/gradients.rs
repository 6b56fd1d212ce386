//! Where a backward pass writes.

use crate::TensorViewMut;

/// A struct with a place for each gradient, and the functions that ask for them.
macro_rules! gradients {
    ($(#[$about:meta])* $name:ident { $($field:ident: $of:literal $(, $how:literal)?;)* }) => {
        $(#[$about])*
        #[derive(Debug, Default)]
        pub struct $name<'a> {
            $(
                #[doc = concat!("Gradient of the ", $of $(, ", ", $how)?, ".")]
                pub $field: Option<TensorViewMut<'a>>,
            )*
        }

        impl<'a> $name<'a> {
            /// Asks for no gradient yet.
            #[must_use]
            pub fn new() -> Self {
                Self::default()
            }

            /// Its places, in the order of the operator's tensors.
            pub(crate) fn in_order(self) -> impl IntoIterator<Item = Option<TensorViewMut<'a>>> {
                [$(self.$field),*]
            }

            $(
                #[doc = concat!("Asks for the gradient of the ", $of, ".")]
                #[must_use]
                pub fn $field(mut self, to: impl Into<TensorViewMut<'a>>) -> Self {
                    self.$field = Some(to.into());
                    self
                }
            )*
        }
    };
}

gradients! {
    /// Where the gradients of a backward pass go. Any subset: what is not asked for is not computed.
    ///
    /// ```
    /// use msdeform::GradientsMut;
    ///
    /// let (mut value, mut weights) = (vec![0f32; 12], vec![0f32; 4]);
    /// let gradients = GradientsMut::new().value(&mut value).weights(&mut weights);
    /// assert!(gradients.locations.is_none());
    /// ```
    GradientsMut {
        value: "value tensor", "in its layout and format";
        locations: "sampling locations";
        weights: "attention weights";
    }
}

gradients! {
    /// Where the gradients of a backward pass from offsets go. Any subset: what is not asked for is not computed.
    OffsetGradientsMut {
        value: "value tensor", "in its layout and format";
        references: "references", "summed over heads and samples";
        offsets: "offsets";
        logits: "logits";
    }
}
