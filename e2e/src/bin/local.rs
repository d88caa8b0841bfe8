//! `hypic-local`: a fleet on loopback, ten questions shown, and the table of all modes.
//! `cargo xtask up --local` builds everything and runs this.

use std::fs;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Parser;
use hypic_domain::flow::Mode;
use hypic_domain::id::ModelId;
use hypic_domain::serving::ModelFile;
use hypic_e2e::fleet::{Fleet, FleetOptions, key_of, show_key_of, tiny};
use hypic_e2e::pass;
use hypic_e2e::questions::{self, Question};
use hypic_e2e::report::{Report, machine};

/// Starts a fleet on this machine and asks it the demo's questions in every mode.
#[derive(Parser)]
struct Args {
    /// Folder with the binaries of router and agent.
    #[arg(long)]
    binaries: PathBuf,
    /// Folder for the fleet's files and logs.
    #[arg(long)]
    dir: PathBuf,
    /// Folder of the checkpoint.
    #[arg(long)]
    model: PathBuf,
    /// Question file.
    #[arg(long)]
    eval: PathBuf,
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

    let model = model_file(&args)?;
    step(&format!("starting a router, 3 combine agents and 2 scatter workers of {}", model.name));
    let mut fleet = Fleet::start(FleetOptions::demo(&args.dir, &args.binaries, model.clone()))?;
    fleet.wait_ready(Duration::from_secs(120))?;
    step(&format!("ready at http://{}", fleet.address()));

    if !args.no_eval {
        let all = questions::read(&args.eval)?;
        show_ten(&fleet, &all, &step)?;
        let report = table(&fleet, &model, &questions::evenly(&all, args.questions), &step)?;
        println!("\n{}", report.table(&Mode::ALL.map(Mode::name)));
        println!("cold: documents shuffled, nothing cached. shuffled: same documents in another order.");
        if let Some(path) = &args.report {
            report.write(path)?;
            step(&format!("wrote {}", path.display()));
        }
    }
    explain(&fleet, &model, args.keep);
    if args.keep {
        let pids = fleet.pids();
        let lines: Vec<String> = pids.values().map(u32::to_string).collect();
        fs::write(args.dir.join("pids"), lines.join("\n") + "\n").context("write the process ids")?;
        fleet.keep();
    }
    Ok(())
}

fn model_file(args: &Args) -> Result<ModelFile> {
    let path = args.model.canonicalize().with_context(|| format!("no model at {}", args.model.display()))?;
    let mut file = tiny(&path);
    if let Some(name) = path.file_name() {
        file.name = ModelId(name.to_string_lossy().into_owned());
    }
    Ok(file)
}

/// Ten questions, at least three of each task, in every mode.
fn show_ten(fleet: &Fleet, all: &[Question], step: &dyn Fn(&str)) -> Result<()> {
    let ten = questions::evenly(all, 10);
    step(&format!("{} questions in every mode", ten.len()));
    for question in &ten {
        println!("\n{}: {}  (expected: {})", question.id, question.question, question.answer);
        for mode in Mode::ALL {
            let answer = fleet.client(&show_key_of(mode)).ask(question, pass::MAX_TOKENS, false)?;
            let segments = &answer.hypic["segments"];
            let mark = if answer.text.trim() == question.answer.trim() { "right" } else { "wrong" };
            println!(
                "  {:<10} TTFT {:>7.1} ms   segments hit {:>2} built {:>2}   {:<12} {mark}",
                mode.name(),
                answer.ttft.as_secs_f64() * 1e3,
                segments["hit"].as_u64().unwrap_or(0) + segments["fetched"].as_u64().unwrap_or(0),
                segments["built"].as_u64().unwrap_or(0),
                answer.text.trim(),
            );
        }
    }
    println!();
    Ok(())
}

fn table(fleet: &Fleet, model: &ModelFile, asked: &[Question], step: &dyn Fn(&str)) -> Result<Report> {
    let mut report = Report {
        machine: machine(),
        model: model.name.to_string(),
        questions: asked.len(),
        ..Report::default()
    };
    for mode in Mode::ALL {
        let name = mode.name();
        let mut progress = |pass: &str, done: usize| {
            if std::io::stdout().is_terminal() {
                print!("\r           {name}: {pass} {done}/{}   ", asked.len());
                // A progress line that cannot be shown is no reason to stop.
                let _ = std::io::stdout().flush();
            }
        };
        let gap = !matches!(mode, Mode::Recompute | Mode::Prefix);
        let (row, texts) = pass::run_mode(&fleet.client(&key_of(mode)), asked, gap, &mut progress)?;
        if std::io::stdout().is_terminal() {
            print!("\r");
        }
        step(&format!("{name}: {} of {} right", row.correct, asked.len()));
        report.modes.insert(name.to_owned(), row);
        report.answers.insert(name.to_owned(), texts);
    }
    Ok(report)
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
        "    -H 'content-type: application/json' -d '{{\"model\": \"{}\", \"messages\": [{{\"role\": \"user\", \"content\": \"Hello\"}}]}}'",
        model.name
    );
    println!("Metrics:   http://{}/metrics", fleet.address());
    for entry in &fleet.topology().agents {
        if let Some(address) = fleet.agent_http(entry.id.as_str()) {
            println!("           http://{address}/metrics ({})", entry.id);
        }
    }
    println!("Logs:      {}", fleet.dir().join("logs").display());
    println!("Stop it:   cargo xtask down");
}
