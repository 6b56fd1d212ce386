//! `msdeform run`: the operator on the user's own tensors.

mod decode;
mod formats;
mod sizes;
mod write;
