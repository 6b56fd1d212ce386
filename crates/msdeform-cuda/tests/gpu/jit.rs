//! What is compiled, when, and what the cache on disk survives.

use std::fs;
use std::path::PathBuf;

use libtest_mimic::{Failed, Trial};
use msdeform::{DType, Direction, Problem};
use msdeform_cuda::nvrtc::Compiled;
use msdeform_cuda::{
    Ahead, BackwardOptions, DiskCache, Engine, JitCounts, Key, Plan, PlanOptions, Stream,
};

use crate::launches::plan;
use crate::resident::Resident;
use crate::{Outcome, engine, ensure};

pub fn trials() -> Vec<Trial> {
    vec![
        Trial::test("jit::other_sizes_compile_nothing", other_sizes),
        Trial::test("jit::no_size_waits_after_the_first_step", no_stop_after_the_first_step),
        Trial::test("jit::a_second_process_compiles_nothing", second_process),
        Trial::test("jit::a_damaged_cache_is_rebuilt", damaged_cache),
        Trial::test("jit::resources_come_with_cached_kernels", resources),
    ]
}

fn problem(batch: usize, queries: usize, size: i64) -> Problem {
    let builder = Problem::builder().batch(batch).heads(4).channels(32).queries(queries).points(4);
    let levels = [(size, size + 3), (size / 2, size / 2 + 1)];
    builder.levels(levels).dtype(DType::F16).build().unwrap()
}

/// Runs a problem and checks the result.
fn run(engine: &Engine, problem: &Problem) -> Outcome {
    run_in(Direction::Forward, engine, problem)
}

fn run_in(direction: Direction, engine: &Engine, problem: &Problem) -> Outcome {
    let stream = Stream::new(engine.context())?;
    let mut resident = Resident::<half::f16>::new(&stream, problem, direction, 21)?;
    resident.run(&stream, &plan(engine, problem, direction)?)?;
    resident.check(&stream)
}

fn other_sizes() -> Outcome {
    for direction in Direction::ALL {
        let engine = engine()?;
        run_in(direction, &engine, &problem(1, 50, 16))?;
        let counts = engine.code().counts();
        ensure!(counts.compiled > 0, "{counts:?}");
        for (batch, queries, size) in [(1, 51, 16), (3, 50, 16), (1, 50, 22), (2, 77, 31)] {
            run_in(direction, &engine, &problem(batch, queries, size))?;
        }
        let after = engine.code().counts();
        ensure!(after == counts, "{direction}: {counts:?} became {after:?}");
    }
    Ok(())
}

/// A decoder that is trained with ever-changing numbers of queries and images.
fn no_stop_after_the_first_step() -> Outcome {
    let engine = engine()?;
    let forward = PlanOptions {
        ahead: Ahead::Gradients(BackwardOptions::default()),
        ..PlanOptions::default()
    };
    let backward = PlanOptions::backward(BackwardOptions::default());
    let step = |problem: &Problem| {
        Plan::new(&engine, problem, &forward).and_then(|_| Plan::new(&engine, problem, &backward))
    };
    step(&problem(2, 300, 32))?;
    engine.compiler().finish();
    let counts = engine.code().counts();
    for turn in 0..200 {
        let (batch, queries) = (1 + turn * 7 % 32, 1 + turn * turn * 13 % 4000);
        step(&problem(batch, queries, 16 + turn as i64 % 40))?;
    }
    ensure!(engine.code().counts() == counts, "{counts:?}, then {:?}", engine.code().counts());
    Ok(())
}

/// A folder that goes away with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let unique = format!("msdeform-{name}-{}", std::process::id());
        Self(std::env::temp_dir().join(unique))
    }

    fn engine(&self) -> Result<Engine, Failed> {
        Ok(Engine::with_cache(0, DiskCache::in_folder(&self.0))?)
    }

    fn entries(&self) -> Result<Vec<PathBuf>, Failed> {
        fs::read_dir(&self.0)?.map(|entry| Ok(entry?.path())).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

fn second_process() -> Outcome {
    let folder = Folder::new("second");
    run(&folder.engine()?, &problem(1, 50, 16))?;
    let entries = folder.entries()?.len() as u64;
    let engine = folder.engine()?;
    run(&engine, &problem(2, 60, 20))?;
    let expected = JitCounts { read_from_disk: entries, ..JitCounts::default() };
    ensure!(engine.code().counts() == expected, "{:?}", engine.code().counts());
    Ok(())
}

fn damaged_cache() -> Outcome {
    let folder = Folder::new("damaged");
    run(&folder.engine()?, &problem(1, 50, 16))?;
    let cut = |entry: &PathBuf| -> Outcome { Ok(fs::write(entry, &fs::read(entry)?[..100])?) };
    let empty = |entry: &PathBuf| -> Outcome { Ok(fs::write(entry, b"")?) };
    // Whole as far as the cache can tell, but nothing that a driver loads.
    let foreign = |entry: &PathBuf| -> Outcome {
        let name = entry.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
        let garbage = Compiled { cubin: b"not machine code\0".to_vec(), log: String::new() };
        DiskCache::in_folder(&folder.0).store(&Key::from_hex(name)?, &garbage);
        Ok(())
    };
    let damages: [&dyn Fn(&PathBuf) -> Outcome; 3] = [&cut, &empty, &foreign];
    for damage in damages {
        let entries = folder.entries()?;
        ensure!(!entries.is_empty(), "nothing was kept");
        entries.iter().try_for_each(damage)?;
        let engine = folder.engine()?;
        run(&engine, &problem(1, 50, 16))?;
        let expected = JitCounts { compiled: entries.len() as u64, ..JitCounts::default() };
        ensure!(engine.code().counts() == expected, "{:?}", engine.code().counts());
        let engine = folder.engine()?;
        run(&engine, &problem(1, 50, 16))?;
        ensure!(engine.code().counts().compiled == 0, "was not repaired");
    }
    Ok(())
}

fn resources() -> Outcome {
    let folder = Folder::new("resources");
    let of = |plan: &Plan| plan.kernels().next().map(|kernel| kernel.resources);
    let fresh = of(&Plan::forward(&folder.engine()?, &problem(1, 50, 16))?);
    let cached = of(&Plan::forward(&folder.engine()?, &problem(1, 50, 16))?);
    ensure!(fresh == cached, "{fresh:?} and {cached:?}");
    ensure!(fresh.is_some_and(|resources| resources.registers > 0), "{fresh:?}");
    Ok(())
}
