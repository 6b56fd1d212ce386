//! A model with the operators in a session of the crate `ort`; `docs/onnx-runtime.md` shows this program.

use std::error::Error;

use ort::session::Session;
use ort::value::Tensor;

fn main() -> Result<(), Box<dyn Error>> {
    let paths: Vec<String> = std::env::args().skip(1).collect();
    let [runtime, operators, model] = &paths[..] else {
        return Err("give the paths of ONNX Runtime, of the operators and of a model".into());
    };
    let environment = ort::init_from(runtime)?.build()?;
    let mut builder = Session::builder(&environment)?.with_operator_library(operators)?;
    let mut session = builder.commit_from_file(model)?;
    let outputs = session.run(ort::inputs![
        Tensor::from_array(([1, 1280, 8, 32], vec![1_f32; 1280 * 8 * 32]))?,
        Tensor::from_array(([2, 2], vec![32_i64, 32, 16, 16]))?,
        Tensor::from_array(([2], vec![0_i64, 1024]))?,
        Tensor::from_array(([1, 300, 8, 2, 4, 2], vec![0.5_f32; 300 * 8 * 2 * 4 * 2]))?,
        Tensor::from_array(([1, 300, 8, 2, 4], vec![0.125_f32; 300 * 8 * 2 * 4]))?,
    ])?;
    let (shape, numbers) = outputs[0].try_extract_tensor::<f32>()?;
    println!("{shape} {}", numbers[0]);
    Ok(())
}
