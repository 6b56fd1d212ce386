//! ONNX models: reading ends for any bytes, and a rewritten model can be read.

use msdeform_onnx::{Form, Options};

#[allow(clippy::panic, reason = "this is how a fuzz target says that something is wrong")]
pub(crate) fn onnx(bytes: &[u8]) {
    // Small, so that a short file cannot ask for much work by writing large sizes down.
    let options = Options { most_elements: 1 << 14 };
    if msdeform_onnx::probes(bytes, options).is_err() {
        return;
    }
    for form in Form::ALL {
        match msdeform_onnx::rewrite(bytes, form, options) {
            Ok(result) => {
                let Some(model) = result.model else { continue };
                let again =
                    msdeform_onnx::inspect(&model, options).map(|report| report.sites.len());
                if !again.is_ok_and(|count| count >= result.rewritten.len()) {
                    panic!("a model that was rewritten to {form} cannot be read");
                }
            }
            // Names that a mutation has doubled can make a site unfindable; then nothing is written.
            Err(_) => continue,
        }
    }
}
