//! Which variant a call gets on one machine, as `msdeform tune` measured it there.
//!
//! A tuning file belongs to one device and one set of kernels. A dispatcher [loads](Tuning::load) it, asks for
//! the entry [nearest](Tuning::find) to a call and decides by itself if no entry fits.
//! Nothing about a tuning file is ever an error of a call: a file that is stale, foreign or broken is ignored, and
//! [`Tuning::ignored`] tells why.

mod class;
mod file;

pub use class::CallClass;
pub use file::{Contender, Entry, Origin, Source, TUNING_VARIABLE, Tuning, TuningFile, slug};
