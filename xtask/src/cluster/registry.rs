//! Pushing an image to a registry, by whichever program is there.

use std::process::Command;

use anyhow::{Result, bail};

use super::image::Archive;
use crate::shell::{on_path, run};

/// Pushes under the image's own name. The programs have the registry's credentials, we do not.
pub(crate) fn push(image: &Archive) -> Result<()> {
    if on_path("skopeo") {
        let source = format!("oci-archive:{}", image.file.display());
        return run(Command::new("skopeo").args(["copy", &source, &format!("docker://{}", image.reference)]));
    }
    if on_path("docker") {
        run(Command::new("docker").args(["load", "--input"]).arg(&image.file))?;
        return run(Command::new("docker").args(["push", &image.reference]));
    }
    bail!("--registry: neither 'skopeo' nor 'docker' is on the PATH to push {}", image.reference)
}
