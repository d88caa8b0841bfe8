//! Writes the definitions of all kinds as YAML into a folder: `hypic-crds charts/hypic-crds/templates`.
//! `cargo xtask crds` calls it.

use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(dir) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("hypic-crds: give the folder to write to");
        return ExitCode::FAILURE;
    };
    for (name, text) in hypic_crds::yaml::files() {
        let written = text
            .map_err(|error| error.to_string())
            .and_then(|text| std::fs::write(dir.join(&name), text).map_err(|error| error.to_string()));
        if let Err(error) = written {
            eprintln!("hypic-crds: {}: {error}", dir.join(&name).display());
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
