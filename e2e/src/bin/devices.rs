//! `hypic-devices`: the same questions to a fleet on the CPU and to one on a GPU, then many requests to the latter, with
//! what its memory does meanwhile; and to an agent with a further device that builds. The agent must be built with the
//! feature `cuda`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use hypic_domain::flow::Mode;
use hypic_e2e::client::Client;
use hypic_e2e::demo::DemoFiles;
use hypic_e2e::fleet::{Fleet, FleetOptions, key_of, tiny};
use hypic_e2e::pass::{MAX_TOKENS, run_mode};
use hypic_e2e::questions::{self, Question};
use hypic_e2e::report::ModeReport;
use rand::SeedableRng;
use rand::rngs::StdRng;

/// Looks at memory, one after each such share of the requests.
const LOOKS: usize = 10;
/// The look after which caches and pools have their size, and what memory may grow by from there to the last one: noise of
/// the allocator.
const WARM: usize = 5;
const GROWTH_MIB: f64 = 32.0;
/// What a driver holds grows to the most that was ever used at once, which may come late: it is shown and not judged.
const HELD: &str = "held";

/// Compares a GPU with the CPU, through a whole fleet.
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    files: DemoFiles,
    /// Device of the second fleet.
    #[arg(long, default_value = "cuda")]
    device: String,
    /// Further device of a third fleet, of one agent.
    #[arg(long)]
    scatter_device: Option<String>,
    /// Questions of the comparison.
    #[arg(long, default_value_t = 40)]
    questions: usize,
    /// Requests of the look at memory.
    #[arg(long, default_value_t = 2000)]
    requests: usize,
}

/// One mode on one device.
struct Row {
    device: String,
    mode: Mode,
    report: ModeReport,
    answers: BTreeMap<String, String>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let all = questions::read(&args.files.eval)?;
    let asked = questions::evenly(&all, args.questions);
    let mut rows = Vec::new();
    let further = args.scatter_device.as_deref();
    let fleets = [("cpu", None), (args.device.as_str(), None)];
    for (device, further) in fleets.into_iter().chain(further.map(|name| (args.device.as_str(), Some(name))))
    {
        let mut fleet = start(&args, device, further)?;
        for mode in [Mode::Recompute, Mode::Pic] {
            let client = fleet.client(&key_of(mode));
            let (report, answers) = run_mode(&client, &asked, false, &mut |_, _| {})?;
            let device = further.map_or(device.to_owned(), |further| format!("{device}+{further}"));
            rows.push(Row { device, mode, report, answers });
        }
        if device != "cpu" && further.is_none() {
            watch_memory(&mut fleet, &all, args.requests)?;
        }
    }
    show(&rows, asked.len());
    Ok(())
}

/// One combine agent, and a scatter worker or a further device, with tiers so small that they are full soon.
fn start(args: &Args, device: &str, further: Option<&str>) -> Result<Fleet> {
    let files = &args.files;
    let dir = files.dir.join(format!("{device}-{}", further.unwrap_or("alone")).replace(':', "-"));
    let mut options = FleetOptions::demo(&dir, &files.binaries, tiny(&files.model()?));
    (options.combine, options.scatter) = (1, usize::from(further.is_none()));
    let flags = ["--device", device, "--device-bytes=67108864", "--host-bytes=67108864", "--disk-bytes=0"];
    options.agent_flags = flags.map(str::to_owned).to_vec();
    options.agent_flags.extend(further.map(|further| format!("--scatter-device={further}")));
    let begun = Instant::now();
    let mut fleet = Fleet::start(options)?;
    files.wait_ready(&mut fleet)?;
    let with = further.map_or(String::new(), |further| format!(" with {further}"));
    println!("{device}{with}: ready after {:.1} s", begun.elapsed().as_secs_f64());
    Ok(fleet)
}

/// Sends `count` requests over documents that nobody has seen.
fn watch_memory(fleet: &mut Fleet, all: &[Question], count: usize) -> Result<()> {
    let client = fleet.client(&key_of(Mode::Pic));
    let mut random = StdRng::seed_from_u64(3);
    let begun = Instant::now();
    let mut looks: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for (number, question) in all.iter().cycle().take(count).enumerate() {
        client.ask(&question.over_new_documents(&mut random), MAX_TOKENS, false)?;
        if (number + 1) * LOOKS / count > number * LOOKS / count {
            for (name, mib) in memory(fleet)? {
                looks.entry(name).or_default().push(mib);
            }
        }
    }
    fleet.check_alive()?;
    println!("{count} requests in {:.0} s; MiB after each tenth of them", begun.elapsed().as_secs_f64());
    let mut grown = Vec::new();
    for (name, of) in &looks {
        println!("  {name:<24} {}", of.iter().map(|mib| format!("{mib:>7.0}")).collect::<String>());
        let warm = of.iter().take(WARM).copied().fold(0.0, f64::max);
        if of.last().is_some_and(|last| *last > warm + GROWTH_MIB) && !name.ends_with(HELD) {
            grown.push(name.as_str());
        }
    }
    if grown.is_empty() { Ok(()) } else { bail!("memory grows: {}", grown.join(", ")) }
}

/// Resident MiB of every process, and what agents use and hold of their GPUs.
fn memory(fleet: &Fleet) -> Result<BTreeMap<String, f64>> {
    let mut found = BTreeMap::new();
    for (name, pid) in fleet.pids() {
        let path = format!("/proc/{pid}/status");
        let text = fs::read_to_string(Path::new(&path)).with_context(|| format!("read {path}"))?;
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let number = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
        if let Some(address) = fleet.agent_http(&name) {
            let client = Client::new(address, "", "");
            for what in ["used", HELD] {
                let bytes = client.metric(&format!("hypic_agent_device_{what}_bytes"));
                ensure!(bytes > 0.0, "{name} does not say what of its GPU is {what}");
                found.insert(format!("{name} GPU {what}"), bytes / f64::from(1 << 20));
            }
        }
        found.insert(name, number.context("no VmRSS")? / 1024.0);
    }
    Ok(found)
}

fn show(rows: &[Row], asked: usize) {
    println!("{:<10} {:<10} {:>10} {:>12} {:>16}", "device", "mode", "right", "TTFT cold", "TTFT shuffled");
    for Row { device, mode, report, .. } in rows {
        let ttft = &report.ttft_ms;
        println!(
            "{device:<10} {:<10} {:>4} of {asked:<3} {:>9.1} ms {:>13.1} ms",
            mode.name(),
            report.correct,
            ttft.cold,
            ttft.shuffled
        );
    }
    for row in rows.iter().filter(|row| row.device != "cpu") {
        let Some(cpu) = rows.iter().find(|other| other.device == "cpu" && other.mode == row.mode) else {
            continue;
        };
        let same = row.answers.iter().filter(|(id, text)| cpu.answers.get(*id) == Some(*text)).count();
        println!("{} and cpu, {}: {same} of {asked} answers are the same", row.device, row.mode.name());
        for (id, text) in &row.answers {
            if let Some(other) = cpu.answers.get(id).filter(|other| *other != text) {
                println!("  {id}: {:?} on the cpu, {:?} on {}", other.trim(), text.trim(), row.device);
            }
        }
    }
}
