//! `hypic-local`: a fleet on loopback, ten questions shown, and the table of all modes.
//! `cargo xtask up --local` builds everything and runs this.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Parser;
use hypic_domain::flow::Mode;
use hypic_domain::id::ModelId;
use hypic_domain::serving::ModelFile;
use hypic_e2e::demo::DemoFiles;
use hypic_e2e::fleet::{Fleet, FleetOptions, key_of, tiny};
use hypic_e2e::questions;
use hypic_e2e::show::Shown;

/// What a person is shown to ask: a document and a question, whose answer is "igloo".
const QUESTION: &str = r#"[{"type": "text", "text": "Notes on Tobin. Their flag: igloo. It was raised on the roof of the house beside the old mill."}, {"type": "text", "text": "What is the flag of Tobin?"}]"#;

/// Starts a fleet on this machine and asks it the demo's questions in every mode.
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    files: DemoFiles,
    /// Write the results as JSON.
    #[arg(long)]
    report: Option<PathBuf>,
    /// Leave the fleet running.
    #[arg(long)]
    keep: bool,
    /// Questions of the table.
    #[arg(long, default_value_t = 72)]
    questions: usize,
    /// Stop once the fleet answers: no questions, no table.
    #[arg(long)]
    no_eval: bool,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let start = Instant::now();
    let step = |text: &str| println!("[{:6.1} s] {text}", start.elapsed().as_secs_f64());

    let model = model_file(&args.files.model()?);
    step(&format!("starting a router, 3 combine agents and 2 scatter workers of {}", model.name));
    let mut fleet = Fleet::start(FleetOptions::demo(&args.files.dir, &args.files.binaries, model.clone()))?;
    // From the start, so that `down --local` finds them whatever becomes of this process.
    let pids = args.files.dir.join("pids");
    let lines: Vec<String> = fleet.pids().values().map(u32::to_string).collect();
    fs::write(&pids, lines.join("\n") + "\n").context("write the process ids")?;
    args.files.wait_ready(&mut fleet)?;
    step(&format!("ready at http://{}", fleet.address()));

    if !args.no_eval {
        let all = questions::read(&args.files.eval)?;
        let client = |key: &str| fleet.client(key);
        let shown = Shown { model: model.name.as_str(), client: &client, step: &step };
        let report = shown.ask(&all, args.questions)?;
        if let Some(path) = &args.report {
            report.write(path)?;
            step(&format!("wrote {}", path.display()));
        }
    }
    explain(&fleet, &model, args.keep);
    if args.keep {
        fleet.keep();
    } else {
        drop(fleet);
        fs::remove_file(&pids).context("remove the process ids")?;
    }
    Ok(())
}

fn model_file(path: &Path) -> ModelFile {
    let mut file = tiny(path);
    if let Some(name) = path.file_name() {
        file.name = ModelId(name.to_string_lossy().into_owned());
    }
    file
}

fn explain(fleet: &Fleet, model: &ModelFile, keep: bool) {
    if !keep {
        println!(
            "\nThe fleet is stopped. Leave it running with --keep; its logs are in {}.",
            fleet.dir().join("logs").display()
        );
        return;
    }
    println!("\nAsk it:");
    println!(
        "  curl http://{}/v1/chat/completions -H 'authorization: Bearer {}' \\",
        fleet.address(),
        key_of(Mode::Pic)
    );
    println!(
        "    -H 'content-type: application/json' -d '{{\"model\": \"{}\", \"messages\": [{{\"role\": \"user\", \"content\": {QUESTION}}}]}}'",
        model.name
    );
    println!(
        "Its key is that of one mode, as are sk-local-recompute, sk-local-prefix, sk-local-add, sk-local-last."
    );
    println!("Metrics:   http://{}/metrics", fleet.address());
    for entry in &fleet.topology().agents {
        if let Some(address) = fleet.agent_http(entry.id.as_str()) {
            println!("           http://{address}/metrics ({})", entry.id);
        }
    }
    println!("Logs:      {}", fleet.dir().join("logs").display());
    println!("Stop it:   cargo xtask down --local");
}
