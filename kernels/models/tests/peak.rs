//! Memory while a checkpoint loads. Alone in its process: the kernel keeps one peak per process.

#![allow(clippy::unwrap_used, reason = "a test's helper fails its test")]

use std::path::Path;
use std::process::Command;
use std::{env, fs};

use hypic_domain::id::ModelId;
use hypic_kernels::cpu::CpuDevice;
use hypic_models::random::{RandomSpec, write};

/// Tells the child which checkpoint to load.
const CHECKPOINT: &str = "HYPIC_TEST_CHECKPOINT";

#[test]
fn loading_peaks_at_most_a_fifth_above_the_weights() {
    if let Some(dir) = env::var_os(CHECKPOINT) {
        return load_and_measure(Path::new(&dir));
    }
    for half_precision in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let sizes =
            RandomSpec { hidden: 1024, intermediate: 1536, vocab: 3072, layers: 12, ..RandomSpec::default() };
        write(dir.path(), &RandomSpec { half_precision, ..sizes }).unwrap();
        // What writing leaves on the heap must not hide what loading takes.
        let mut child = Command::new(env::current_exe().unwrap());
        child
            .args(["--exact", "loading_peaks_at_most_a_fifth_above_the_weights"])
            .env(CHECKPOINT, dir.path());
        let output = child.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
}

fn load_and_measure(dir: &Path) {
    let device = CpuDevice::new(1).unwrap();
    let before = status("VmRSS");
    let loaded = hypic_models::load(dir, &device, ModelId::from("large")).unwrap();
    let (peak, weights) = (status("VmHWM") - before, loaded.bytes);
    let share = peak as f64 / weights as f64;
    assert!((0.9..=1.2).contains(&share), "{peak} bytes at most for {weights} bytes of weights");
}

/// A line of `/proc/self/status`, in bytes.
fn status(name: &str) -> u64 {
    let text = fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim_start_matches(':').trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}
