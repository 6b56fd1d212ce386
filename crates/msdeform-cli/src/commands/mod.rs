//! One file per command.

mod analyze;
mod bench;
mod counters;
mod ledger;
pub mod main_job;
mod onnx;
mod probe;
mod records;
mod report;
mod shells;
mod soak;
mod tune;
mod variants;
mod verify;
mod warm;
mod workloads;

use clap::Subcommand;

/// Everything the tool does besides the main job.
#[derive(Debug, Subcommand)]
pub enum Command {
    Variants(variants::VariantsArgs),
    Verify(verify::VerifyArgs),
    Bench(bench::BenchArgs),
    Ledger(ledger::LedgerCommandArgs),
    Onnx(onnx::OnnxArgs),
    Probe(probe::ProbeCommandArgs),
    Analyze(analyze::AnalyzeArgs),
    Counters(counters::CountersArgs),
    Records(records::RecordsArgs),
    Report(report::ReportArgs),
    Run(crate::run::RunArgs),
    Soak(soak::SoakArgs),
    Tune(tune::TuneArgs),
    Warm(warm::WarmArgs),
    Workloads(workloads::WorkloadsArgs),
    Completions(shells::CompletionsArgs),
    Man(shells::ManArgs),
}

impl Command {
    pub fn run(&self) -> anyhow::Result<()> {
        match self {
            Self::Variants(args) => variants::run(args),
            Self::Verify(args) => verify::run(args),
            Self::Bench(args) => bench::run(args),
            Self::Ledger(args) => ledger::run(args),
            Self::Onnx(args) => onnx::run(args),
            Self::Probe(args) => probe::run(args),
            Self::Analyze(args) => analyze::run(args),
            Self::Counters(args) => counters::run(args),
            Self::Records(args) => records::run(args),
            Self::Report(args) => report::run(args),
            Self::Run(args) => crate::run::run(args),
            Self::Soak(args) => soak::run(args),
            Self::Tune(args) => tune::run(args),
            Self::Warm(args) => warm::run(args),
            Self::Workloads(args) => workloads::run(args),
            Self::Completions(args) => shells::completions(args),
            Self::Man(args) => shells::man(args),
        }
    }
}
