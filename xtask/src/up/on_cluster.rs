//! `up` without `--local`: a cluster, the charts, the sample, and what it shows.

use std::time::Instant;

use anyhow::{Result, bail};

use super::UpArgs;
use crate::cluster::{Binaries, TAG, Target};
use crate::install::{self, SAMPLE, install};
use crate::shell::{binary_path, build_binaries, root, run, step};

/// Nodes of the lab.
const NODES: u8 = 2;

/// Sets all up and runs `hypic-demo`. The cluster stays.
pub(crate) fn up(args: &UpArgs) -> Result<()> {
    if args.model.is_some() {
        bail!("--model: the image has hypic-tiny alone; take 'up --local', or a HypicModel with a volume");
    }
    let target = Target::new(&args.target)?;
    let (start, warm) = (Instant::now(), target.is_warm());
    if !args.no_build {
        step("build router, agent, operator and demo", build_binaries)?;
    }
    target.up(NODES)?;
    let image = target.images(TAG, Binaries::AsBuilt)?;
    install(&target, &image)?;
    let kind =
        if warm { "warm: Kubernetes had been built before" } else { "cold: Kubernetes was built first" };
    println!("set-up took {:.0} s ({kind})", start.elapsed().as_secs_f64());

    let shown = run(&mut target.command(&demo(args, &target)?)?);
    explain(&target);
    shown
}

fn demo(args: &UpArgs, target: &Target) -> Result<Vec<String>> {
    let mut words = vec![binary_path("hypic-demo").display().to_string()];
    let mut flag = |name: &str, value: String| words.extend([name.to_owned(), value]);
    flag("--sample", root().join("e2e/samples/hypic-tiny.yaml").display().to_string());
    flag("--eval", args.eval()?.display().to_string());
    flag("--questions", args.questions.to_string());
    if let Some(report) = args.report()? {
        flag("--report", report.display().to_string());
    }
    if let Some(seconds) = args.wait {
        flag("--wait", seconds.to_string());
    }
    if args.no_eval {
        words.push("--no-eval".to_owned());
    }
    if !matches!(target, Target::Lab(_)) {
        words.push("--forward".to_owned());
    }
    Ok(words)
}

fn explain(target: &Target) {
    let flags = target.flags();
    let inside = format!("cargo xtask cluster{flags} run --");
    println!("\nIt goes on running. kubectl, helm and curl reach it behind '{inside}':");
    match target {
        Target::Lab(_) => {
            println!("  endpoint    {inside} curl http://demo.{SAMPLE}.svc/v1/chat/completions \\")
        }
        _ => {
            println!("  endpoint    {inside} kubectl -n {SAMPLE} port-forward service/demo 8080:80, then");
            println!("              curl http://127.0.0.1:8080/v1/chat/completions \\");
        }
    }
    println!(
        "                -H 'authorization: Bearer sk-local-pic' -H 'content-type: application/json' \\"
    );
    println!(
        "                -d '{{\"model\": \"hypic-tiny\", \"messages\": [{{\"role\": \"user\", \"content\": \"Hello\"}}]}}'"
    );
    println!("  fleet       {inside} kubectl -n {SAMPLE} get hypic,pods");
    println!("  why so many {inside} kubectl -n {SAMPLE} describe hysp demo-scatter");
    if let Target::Lab(lab) = target {
        println!("  Prometheus  {inside} curl {}/api/v1/query?query=up", lab.prometheus());
        println!("              its pages in a browser: docs/guide/operate.md");
    }
    println!(
        "  Grafana     dashboards are ConfigMaps: {inside} kubectl -n {} get configmaps -l grafana_dashboard=1",
        install::NAMESPACE
    );
    println!("  operator    {inside} kubectl -n {} logs deployment/hypic-operator", install::NAMESPACE);
    println!("Stop it:      cargo xtask down{flags}");
}
