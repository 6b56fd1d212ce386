//! Ceilings: the best rates of a GPU, which every kernel's time is compared with.
//!
//! Each probe is a small kernel that does one thing only (`kernels/probes`), for so long that its start does not count.
//! The best of several launches is the ceiling.

mod tiles;

use crate::sources::{SourceFile, headers};
use msdeform_cuda::{
    Context, DeviceBuffer, Engine, Event, Function, Graph, LaunchGeometry, Module, Recipe, Result,
    Stream,
};
use tiles::Copier;

/// One measured ceiling.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ceiling {
    /// Its name in profiles, such as `l1_gather_pair`.
    pub name: &'static str,
    /// The best that was reached.
    pub value: f64,
    /// What `value` counts.
    pub unit: &'static str,
    /// What was measured, as text for reports.
    pub what: &'static str,
}

/// The result of a check for a feature of the GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// Its name in profiles.
    pub name: &'static str,
    /// Whether the feature works.
    pub passed: bool,
    /// What was seen; the driver's message if it refused.
    pub outcome: String,
}

macro_rules! probe_source {
    ($name:literal) => {
        SourceFile {
            name: concat!($name, ".cu"),
            text: include_str!(concat!("../../kernels/probes/", $name, ".cu")),
        }
    };
}

const GATHER: SourceFile = probe_source!("gather");
const ARITHMETIC: SourceFile = probe_source!("arithmetic");
const REDUCE: SourceFile = probe_source!("reduce");
const EMPTY: SourceFile = probe_source!("empty");
const TILE_COPY: SourceFile = probe_source!("tile_copy");

/// Launches of a probe; the best counts.
const PASSES: usize = 7;
/// Small enough for any L1.
const L1_SLAB_BYTES: usize = 16 << 10;
/// Far more than L1, less than half of the L2 of every GPU with a fast one.
const L2_SLAB_BYTES: usize = 16 << 20;
const COPY_BYTES: usize = 1 << 30;
const LAUNCHES: usize = 200;

const GATHER_THREADS: u32 = 1024;
const GATHER_UNROLL: usize = 8;
const ARITHMETIC_THREADS: u32 = 512;
/// Instructions of a round: eight on each of eight chains.
const ARITHMETIC_UNROLL: usize = 64;

/// The mirrors of the kernels' parameters.
#[repr(C)]
struct GatherParams {
    slab: u64,
    sink: u64,
    row_mask: u32,
    rounds: i32,
}
#[repr(C)]
struct ArithmeticParams {
    sink: u64,
    seed: u32,
    rounds: i32,
}
#[repr(C)]
struct ReduceParams {
    slab: u64,
    line_mask: u32,
    rounds: i32,
}

/// A kind of probe: its macro, and the name and unit of its result.
struct Kind {
    name: &'static str,
    what: &'static str,
    macro_value: i32,
    /// Bytes of the slab for a gather, shared bytes of a block for arithmetic.
    bytes: usize,
    /// Contribution of one lane's instruction, in billionths of the unit.
    worth: f64,
    unit: &'static str,
}

const GATHERS: &[Kind] = &[
    gather("l1_gather_line", "8 lanes read a 128-byte line, from L1", 0, L1_SLAB_BYTES),
    gather(
        "l1_gather_pair",
        "8 lanes read 128 bytes from any 64-byte row on, from L1",
        1,
        L1_SLAB_BYTES,
    ),
    gather(
        "l1_gather_rows",
        "4 lanes read a 64-byte row, unrelated rows, from L1",
        2,
        L1_SLAB_BYTES,
    ),
    gather("l1_gather_fragment", "a tensor core's operand order, from L1", 3, L1_SLAB_BYTES),
    gather("l2_gather_line", "8 lanes read a 128-byte line, from L2", 0, L2_SLAB_BYTES),
    gather(
        "l2_gather_pair",
        "8 lanes read 128 bytes from any 64-byte row on, from L2",
        1,
        L2_SLAB_BYTES,
    ),
    gather(
        "l2_gather_rows",
        "4 lanes read a 64-byte row, unrelated rows, from L2",
        2,
        L2_SLAB_BYTES,
    ),
];

const fn gather(name: &'static str, what: &'static str, pattern: i32, bytes: usize) -> Kind {
    Kind { name, what, macro_value: pattern, bytes, worth: 16.0, unit: "GB/s" }
}

const UNITS: &[Kind] = &[
    Kind {
        name: "fma_f32",
        what: "fused multiply-add, two operations each",
        macro_value: 0,
        bytes: 0,
        worth: 2e-3,
        unit: "TFLOP/s",
    },
    Kind {
        name: "fma_f16",
        what: "packed half fused multiply-add, four operations each",
        macro_value: 1,
        bytes: 0,
        worth: 4e-3,
        unit: "TFLOP/s",
    },
    Kind {
        name: "mma_f16",
        what: "mma.m16n8k16 with f32 sums, operands in registers",
        macro_value: 2,
        bytes: 0,
        worth: 2.0 * 16.0 * 8.0 * 16.0 / 32.0 * 1e-3,
        unit: "TFLOP/s",
    },
    Kind {
        name: "shared_load",
        what: "16 bytes a lane from shared memory without conflicts",
        macro_value: 3,
        bytes: 32 << 10,
        worth: 16.0,
        unit: "GB/s",
    },
    Kind {
        name: "shared_wavefronts",
        what: "passes of the shared-memory data path: 4 bytes a lane, a warp in each",
        macro_value: 4,
        bytes: 32 << 10,
        worth: 1.0 / 32.0,
        unit: "G/s",
    },
];

/// Measures all ceilings, in a few seconds. Calls `before` with the name of each one when it starts.
pub fn ceilings(engine: &Engine, before: &mut dyn FnMut(&str)) -> Result<Vec<Ceiling>> {
    let lab = Lab::new(engine)?;
    let mut found = Vec::new();
    let mut measure = |name: &'static str,
                       what: &'static str,
                       unit: &'static str,
                       run: &dyn Fn() -> Result<f64>|
     -> Result<()> {
        before(name);
        found.push(Ceiling { name, value: run()?, unit, what });
        Ok(())
    };
    let copied = "device-to-device copy of 1 GiB, bytes read plus bytes written";
    measure("dram_copy", copied, "GB/s", &|| lab.copy())?;
    for kind in GATHERS {
        measure(kind.name, kind.what, kind.unit, &|| lab.gather(kind))?;
    }
    let reduced = "red.global.add.f32 on random 128-byte lines in L2, bytes of the updates";
    measure("l2_reduce_f32", reduced, "GB/s", &|| lab.reduce())?;
    for kind in UNITS {
        measure(kind.name, kind.what, kind.unit, &|| lab.arithmetic(kind))?;
    }
    let tiles = "2 x 2 tiles of 32 half channels into shared memory, 16 lanes each, from 1 MB";
    measure("tile_copy", tiles, "GB/s", &|| lab.tile_copy(Copier::Lanes))?;
    if lab.has_copy_engine() {
        let tiles = "the same tiles by the copy engine (cp.async.bulk.tensor.3d)";
        measure("tma_tile_copy", tiles, "GB/s", &|| lab.tile_copy(Copier::Engine))?;
    }
    let graph = "an empty kernel in a graph of 200, time of one";
    measure("launch_in_graph", graph, "us", &|| lab.launch_in_graph())?;
    measure("launch", "an empty kernel in a stream of 200, time of one", "us", &|| lab.launch())?;
    Ok(found)
}

/// Checks features of this GPU: the copy engine's descriptors, with the driver's message if it refuses.
pub fn checks(engine: &Engine) -> Result<Vec<Check>> {
    Ok(vec![Lab::new(engine)?.check_tensor_map()?])
}

/// Shared by all probes: engine, stream, events, sink.
struct Lab<'a> {
    engine: &'a Engine,
    stream: Stream,
    start: Event,
    end: Event,
    sink: DeviceBuffer<u32>,
}

impl<'a> Lab<'a> {
    fn new(engine: &'a Engine) -> Result<Self> {
        let context = engine.context();
        let stream = Stream::new(context)?;
        let sink = DeviceBuffer::filled(&stream, 1, 0)?;
        let (start, end) = (Event::new(context)?, Event::new(context)?);
        Ok(Self { engine, stream, start, end, sink })
    }

    fn context(&self) -> &Context {
        self.engine.context()
    }

    fn multiprocessors(&self) -> u32 {
        self.context().props().multiprocessors
    }

    fn function(&self, source: SourceFile, entry: &str, defines: &[String]) -> Result<Function> {
        let nvrtc = self.engine.code().nvrtc()?;
        let target = nvrtc.target_for(&self.context().props().arch())?;
        let compiled = Recipe::of_source(source, headers(), &target, defines).compile(nvrtc)?;
        Module::load(self.context(), &compiled.cubin)?.function(entry)
    }

    /// The shortest of several runs of the kernels that `work` queues, in microseconds.
    fn best_us(&self, work: &dyn Fn() -> Result<()>) -> Result<f64> {
        work()?;
        let mut best = f64::INFINITY;
        for _ in 0..PASSES {
            self.start.record(&self.stream)?;
            work()?;
            self.end.record(&self.stream)?;
            self.end.synchronize()?;
            best = best.min(self.end.elapsed_us_since(&self.start)?);
        }
        Ok(best)
    }

    /// Queues a probe.
    ///
    /// # Safety
    /// `P` is what the kernel declares, and the memory it names is large enough and outlives the run.
    unsafe fn queue<P>(
        &self,
        function: &Function,
        geometry: LaunchGeometry,
        params: &P,
    ) -> Result<()> {
        let _entered = self.context().enter()?;
        // SAFETY: the caller's promise.
        Ok(unsafe {
            function.launch(&self.stream, &geometry, None, std::ptr::from_ref(params).cast())
        }?)
    }

    fn copy(&self) -> Result<f64> {
        let (free, _) = self.context().memory_bytes()?;
        let elements = COPY_BYTES.min(free / 4) / size_of::<f32>();
        let source = DeviceBuffer::<f32>::filled(&self.stream, elements, 1)?;
        let target = DeviceBuffer::<f32>::filled(&self.stream, elements, 2)?;
        let target = std::cell::RefCell::new(target);
        let best = self.best_us(&|| target.borrow_mut().copy_from_device(&self.stream, &source))?;
        Ok(2.0 * source.bytes() as f64 / best * 1e-3)
    }

    fn gather(&self, kind: &Kind) -> Result<f64> {
        // One pixel more than the mask reaches, because a pair that starts in the last row ends after it.
        let slab = DeviceBuffer::<u8>::filled(&self.stream, kind.bytes + 64, 1)?;
        let defines = [format!("-DMSDA_PROBE_PATTERN={}", kind.macro_value)];
        let function = self.function(GATHER, "gather", &defines)?;
        let geometry = LaunchGeometry::linear(2 * self.multiprocessors(), GATHER_THREADS);
        let rounds = 256;
        let params = GatherParams {
            slab: slab.address(),
            sink: self.sink.address(),
            row_mask: u32::try_from(kind.bytes / 64 - 1).unwrap_or(0),
            rounds,
        };
        // SAFETY: the mirror of the kernel's struct; rows lie within the slab, see above.
        let best = self.best_us(&|| unsafe { self.queue(&function, geometry, &params) })?;
        Ok(rate(geometry, rounds as usize * GATHER_UNROLL, kind.worth, best))
    }

    fn arithmetic(&self, kind: &Kind) -> Result<f64> {
        let defines = [format!("-DMSDA_PROBE_UNIT={}", kind.macro_value)];
        let function = self.function(ARITHMETIC, "arithmetic", &defines)?;
        let shared_bytes = u32::try_from(kind.bytes).unwrap_or(0);
        let geometry = LaunchGeometry {
            shared_bytes,
            ..LaunchGeometry::linear(2 * self.multiprocessors(), ARITHMETIC_THREADS)
        };
        let rounds = 512;
        // 1.0 in both halves: sums grow and stay finite long enough not to matter.
        let params = ArithmeticParams { sink: self.sink.address(), seed: 0x3c00_3c00, rounds };
        // SAFETY: the mirror of the kernel's struct; the kernel only writes the sink.
        let best = self.best_us(&|| unsafe { self.queue(&function, geometry, &params) })?;
        Ok(rate(geometry, rounds as usize * ARITHMETIC_UNROLL, kind.worth, best))
    }

    fn reduce(&self) -> Result<f64> {
        let slab = DeviceBuffer::<f32>::filled(&self.stream, L2_SLAB_BYTES / 4, 0)?;
        let function = self.function(REDUCE, "reduce", &[])?;
        let geometry = LaunchGeometry::linear(2 * self.multiprocessors(), GATHER_THREADS);
        let rounds = 16;
        let line_mask = u32::try_from(slab.bytes() / 128 - 1).unwrap_or(0);
        let params = ReduceParams { slab: slab.address(), line_mask, rounds };
        // SAFETY: the mirror of the kernel's struct; lines lie within the slab.
        let best = self.best_us(&|| unsafe { self.queue(&function, geometry, &params) })?;
        Ok(rate(geometry, rounds as usize * GATHER_UNROLL, 4.0, best))
    }

    fn launch(&self) -> Result<f64> {
        let function = self.function(EMPTY, "empty", &[])?;
        Ok(self.best_us(&|| self.queue_empty(&function))? / LAUNCHES as f64)
    }

    fn launch_in_graph(&self) -> Result<f64> {
        let function = self.function(EMPTY, "empty", &[])?;
        let graph = Graph::capture(&self.stream, |_| self.queue_empty(&function))?;
        // SAFETY: the kernel uses nothing, and its module outlives the replays.
        Ok(self.best_us(&|| unsafe { graph.launch(&self.stream) })? / LAUNCHES as f64)
    }

    fn queue_empty(&self, function: &Function) -> Result<()> {
        // SAFETY: the kernel reads no parameter and no memory.
        (0..LAUNCHES)
            .try_for_each(|_| unsafe { self.queue(function, LaunchGeometry::linear(1, 32), &0i32) })
    }
}

/// The rate if every lane did `instructions`: billions of `worth` per second.
fn rate(geometry: LaunchGeometry, instructions: usize, worth: f64, best_us: f64) -> f64 {
    let lanes = f64::from(geometry.grid[0] * geometry.block[0]);
    lanes * instructions as f64 * worth / best_us * 1e-3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_probe_compiles_where_there_is_a_compiler() {
        let Some(nvrtc) = msdeform_cuda::nvrtc::Nvrtc::for_tests() else { return };
        let compile = |source, defines: &[String]| {
            let compiled = Recipe::of_source(source, headers(), "sm_80", defines).compile(&nvrtc);
            assert!(compiled.is_ok(), "{}", compiled.unwrap_err());
        };
        for kind in GATHERS {
            compile(GATHER, &[format!("-DMSDA_PROBE_PATTERN={}", kind.macro_value)]);
        }
        for kind in UNITS {
            compile(ARITHMETIC, &[format!("-DMSDA_PROBE_UNIT={}", kind.macro_value)]);
        }
        compile(REDUCE, &[]);
        compile(EMPTY, &[]);
        compile(TILE_COPY, &[Copier::Lanes.define()]);
        let engine = Recipe::of_source(TILE_COPY, headers(), "sm_90a", &[Copier::Engine.define()]);
        assert!(engine.compile(&nvrtc).is_ok());
    }

    #[test]
    fn a_rate_counts_every_lane() {
        let geometry = LaunchGeometry::linear(132, 1024);
        // 132 x 1024 lanes x 1000 loads x 16 bytes in 100 us.
        let gb_per_s = rate(geometry, 1000, 16.0, 100.0);
        assert!((gb_per_s / 21_626.88 - 1.0).abs() < 1e-9, "{gb_per_s}");
    }
}
