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

/// Declares the commands, each with its arguments and the function that runs it.
macro_rules! commands {
    ($($name:ident($args:path) $run:path;)*) => {
        /// Everything the tool does besides the main job.
        #[derive(Debug, Subcommand)]
        pub enum Command {
            $($name($args)),*
        }

        impl Command {
            pub fn run(&self) -> anyhow::Result<()> {
                match self {
                    $(Self::$name(args) => $run(args)),*
                }
            }
        }
    };
}

commands! {
    Variants(variants::VariantsArgs) variants::run;
    Verify(verify::VerifyArgs) verify::run;
    Bench(bench::BenchArgs) bench::run;
    Ledger(ledger::LedgerCommandArgs) ledger::run;
    Onnx(onnx::OnnxArgs) onnx::run;
    Probe(probe::ProbeCommandArgs) probe::run;
    Analyze(analyze::AnalyzeArgs) analyze::run;
    Counters(counters::CountersArgs) counters::run;
    Records(records::RecordsArgs) records::run;
    Report(report::ReportArgs) report::run;
    Run(crate::run::RunArgs) crate::run::run;
    Soak(soak::SoakArgs) soak::run;
    Tune(tune::TuneArgs) tune::run;
    Warm(warm::WarmArgs) warm::run;
    Workloads(workloads::WorkloadsArgs) workloads::run;
    Completions(shells::CompletionsArgs) shells::completions;
    Man(shells::ManArgs) shells::man;
}
