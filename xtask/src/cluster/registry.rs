//! Pushing an image to a registry, by whichever program is there.

use std::process::Command;

use anyhow::{Result, bail};

use super::image::Archive;
use crate::shell::{on_path, run};

/// A program that pushes. It has the registry's credentials, we do not.
#[derive(Clone, Copy)]
pub(crate) enum Pusher {
    Skopeo,
    Docker,
}

impl Pusher {
    /// The one that is there.
    ///
    /// # Errors
    /// None is on the PATH.
    pub(crate) fn find() -> Result<Self> {
        match (on_path("skopeo"), on_path("docker")) {
            (true, _) => Ok(Self::Skopeo),
            (_, true) => Ok(Self::Docker),
            _ => bail!("--registry: neither 'skopeo' nor 'docker' is on the PATH to push images"),
        }
    }

    /// Pushes under the image's own name.
    pub(crate) fn push(self, image: &Archive) -> Result<()> {
        match self {
            Self::Skopeo => {
                let source = format!("oci-archive:{}", image.file.display());
                let target = format!("docker://{}", image.reference);
                run(Command::new("skopeo").args(["copy", &source, &target]))
            }
            Self::Docker => {
                run(Command::new("docker").args(["load", "--input"]).arg(&image.file))?;
                run(Command::new("docker").args(["push", &image.reference]))
            }
        }
    }
}
