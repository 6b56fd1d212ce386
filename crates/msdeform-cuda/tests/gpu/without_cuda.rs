//! What a machine without CUDA is told.

use libtest_mimic::Trial;
use msdeform_cuda::{Context, Engine, Error, device_count, driver_version};

use crate::{Outcome, ensure};

pub fn trials() -> Vec<Trial> {
    vec![Trial::test("without_cuda::every_entry_point_says_what_is_missing", entry_points)]
}

fn entry_points() -> Outcome {
    let errors = [
        driver_version().err(),
        device_count().err(),
        Context::new(0).err(),
        Engine::new(0).err(),
        Engine::new(7).err(),
    ];
    for error in errors {
        let Some(error) = error else { return Err("an entry point worked".into()) };
        let words = error.to_string();
        ensure!(
            matches!(error, Error::MissingDriver | Error::OldDriver { .. } | Error::Driver(_)),
            "{error:?}"
        );
        if error == Error::MissingDriver {
            for expected in ["no CUDA driver", "install the NVIDIA driver", "CPU backend"] {
                ensure!(words.contains(expected), "{words}");
            }
        }
    }
    Ok(())
}
