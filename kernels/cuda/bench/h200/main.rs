//! Correctness and time of the kernels on one GPU, at the shape of one layer of Qwen3.5-35B-A3B: 64 segments,
//! 16 key heads, 32 value heads of 128. Fresh random data with slow decays. Prints a table; `h200 FILE
//! [attention] [compose] [families] [prefill]` also writes the figures as JSON, of the named parts only.
//!
//! Times are medians of replayed CUDA graphs of several calls over two input sets in turn.

mod attention;
mod compose;
mod data;
mod families;
mod prefill;

use std::collections::BTreeMap;

use hypic_cuda::{Device, Graph, Result};

/// Figures by key.
pub(crate) type Figures = BTreeMap<String, f64>;

/// Milliseconds of one call: the median over replays of a graph of `rounds` times `calls`, each on its own
/// inputs.
pub(crate) fn time(
    device: &Device,
    rounds: usize,
    calls: &mut [&mut dyn FnMut() -> Result<()>],
) -> Result<f64> {
    for call in calls.iter_mut() {
        call()?;
    }
    device.wait()?;
    let count = rounds * calls.len();
    let graph = Graph::record(device, || {
        for _ in 0..rounds {
            for call in calls.iter_mut() {
                call()?;
            }
        }
        Ok(())
    })?;
    let mut times = (0..11).map(|_| graph.time_ms()).collect::<Result<Vec<f64>>>()?;
    times.drain(..2);
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2] / count as f64)
}

/// Records a figure and prints it.
pub(crate) fn note(figures: &mut Figures, key: impl Into<String>, value: f64) {
    let key = key.into();
    println!("{key:<44} {value:.4e}");
    figures.insert(key, value);
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let device = Device::cuda(0)?;
    let mut figures = Figures::new();
    let mut arguments = std::env::args().skip(1);
    let report = arguments.next();
    let parts: Vec<String> = arguments.collect();
    let wanted = |part: &str| parts.is_empty() || parts.iter().any(|wanted| wanted == part);
    if wanted("attention") {
        attention::run(&device, &mut figures)?;
    }
    if wanted("compose") {
        compose::run(&device, &mut figures)?;
    }
    if wanted("families") {
        families::run(&device, &mut figures)?;
    }
    if wanted("prefill") {
        prefill::run(&device, &mut figures)?;
    }
    if let Some(path) = report {
        std::fs::write(path, serde_json::to_string_pretty(&figures)?)?;
    }
    Ok(())
}
