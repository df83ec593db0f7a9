//! The flags of `calibrate`.

use clap::Args;
use std::path::PathBuf;

/// Shown under the help of `calibrate`.
pub const EXAMPLES: &str = "Examples:
  plimsoll calibrate requests.jsonl --device \"RTX 4090\" --engine-version 0.19.0 --save 4090.yaml -- \\
      vllm serve meta-llama/Llama-3.1-8B --max-model-len 32768
  plimsoll calibrate bench.json server.log --scenario mine.yaml --save mine-profile.yaml
  plimsoll run mine.yaml --profile mine-profile.yaml

A measurement is a log of SGLang or vLLM, a detailed result of their benchmark clients, JSON Lines with the
times of each request, or a recording of `run --record` or `watch --record`. Which it is is told by its
content.";

/// `plimsoll calibrate`.
#[derive(Args, Debug)]
pub struct CalibrateArgs {
    /// Files of measurements, all of one launch on one machine.
    #[arg(required = true, value_name = "MEASURED")]
    pub measured: Vec<PathBuf>,
    /// Scenario whose machine and launch were measured; its workload is not used.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["device", "engine_version", "model", "command"])]
    pub scenario: Option<PathBuf>,
    /// Device, by catalog name (`plimsoll plan --device list` prints them all).
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
    /// Release of the engine that was measured, for example 0.19.0.
    #[arg(long, value_name = "RELEASE")]
    pub engine_version: Option<String>,
    /// Model: a hub id, a catalog name, a folder with config.json, or a GGUF file. Default: that of the launch.
    #[arg(long, value_name = "MODEL")]
    pub model: Option<String>,
    /// Write the profile to this file.
    #[arg(long, value_name = "FILE")]
    pub save: Option<PathBuf>,
    /// Fit the first N requests of each file, by arrival, and hold the others out. Default: half.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub fit_first: Option<u32>,
    /// The launch command as typed, after `--`.
    #[arg(last = true, value_name = "LAUNCH COMMAND")]
    pub command: Vec<String>,
}
