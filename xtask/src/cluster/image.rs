//! Images without a registry or a build tool: `e2e/cluster/image/mkimage.py` writes a tar, containerd takes it.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::cache::{cached, digest, folder};
use super::daemon::{quietly, told};
use super::go;
use crate::shell::{binary_path, build_binaries, root, run};

/// The hypic image's tag unless another is asked for.
pub(crate) const TAG: &str = "0.1.0";
/// Its repository without a registry.
const REPOSITORY: &str = "hypic.dev/hypic";
/// The binaries that are in it.
const BINARIES: [&str; 3] = ["hypic-router", "hypic-node-agent", "hypic-operator"];
/// Where the library of products lies in an image for GPUs; elsewhere no loader looks for it.
const LIBRARIES: &str = "/usr/local/lib/hypic";
/// Where NVIDIA's container runtime puts the driver into an image that is of no distribution, and where device plugins of
/// clouds mount it. Debian's loader, which the image has, looks in neither, and the image has no cache of libraries.
const DRIVER: &str = "/usr/lib64:/usr/local/nvidia/lib64";
/// Who the containers run as.
const USER: &str = "65532:65532";

/// An image in a file.
pub(crate) struct Archive {
    /// An OCI layout in a tar.
    pub(crate) file: PathBuf,
    /// What pods name it by.
    pub(crate) reference: String,
    /// Digest of what it was made from.
    pub(crate) key: String,
}

/// The images that a cluster itself needs: the sandboxes' process, and CoreDNS.
pub(crate) fn cluster() -> Result<Vec<Archive>> {
    let source = root().join("e2e/cluster/image/pause.c");
    let pause = folder().join("image/pause");
    cached(&pause, &digest(std::slice::from_ref(&source))?, |part| {
        quietly(Command::new("gcc").args(["-Os", "-static", "-s", "-o"]).arg(part).arg(&source))
    })?;
    Ok(vec![
        make(
            "pause",
            "hypic.dev/pause:1",
            &["--entrypoint=/pause", "--user=65535:65535"],
            &[(pause, "/pause")],
        )?,
        make("kube", "hypic.dev/kube:1", &["--entrypoint=/kube"], &[(go::kube(), "/kube")])?,
    ])
}

/// The binaries of an image.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Binaries {
    /// As the demo or the tests have built them before.
    AsBuilt,
    /// Built now; the agent computes on CPUs.
    Cpu,
    /// Built now; the agent computes on GPUs too, with cublasLt beside it.
    Cuda,
}

impl Binaries {
    /// The image's tag unless another is asked for.
    pub(crate) fn tag(self) -> &'static str {
        if self == Self::Cuda { "0.1.0-cuda" } else { TAG }
    }

    fn build(self) -> Result<()> {
        match self {
            Self::AsBuilt => Ok(()),
            Self::Cpu => build_binaries(),
            Self::Cuda => {
                let home = told(&mut Command::new(root().join("kernels/cuda/toolchain.sh")))?;
                let words =
                    ["build", "--locked", "--workspace", "--bins", "--features", "hypic-node-agent/cuda"];
                run(Command::new("cargo").args(words).current_dir(root()).env("CUDA_HOME", home))
            }
        }
    }
}

/// Router, agent and operator with the demo's model; `prefix` is a registry's host and path.
pub(crate) fn hypic(prefix: Option<&str>, tag: &str, binaries: Binaries) -> Result<Archive> {
    binaries.build()?;
    let mut files = vec![(root().join("e2e/models/hypic-tiny"), "/models/hypic-tiny".to_owned())];
    let mut libraries = Vec::new();
    for name in BINARIES {
        let built = binary_path(name);
        if !built.exists() {
            bail!("{} is missing: build it first, without --no-build", built.display());
        }
        let stripped = folder().join("image").join(name);
        cached(&stripped, &digest(std::slice::from_ref(&built))?, |part| {
            quietly(Command::new("strip").arg("-o").arg(part).arg(&built))
        })?;
        libraries.push(format!("--libs={}", stripped.display()));
        files.push((stripped, format!("/usr/local/bin/{name}")));
    }
    let user = format!("--user={USER}");
    let mut flags = vec![user.as_str(), "--dir=tmp"];
    let search = format!("--env=LD_LIBRARY_PATH={LIBRARIES}:{DRIVER}");
    if binaries == Binaries::Cuda {
        let library = PathBuf::from(told(&mut Command::new(root().join("kernels/cuda/library.sh")))?);
        libraries.push(format!("--libs={}", library.display()));
        files.push((library, format!("{LIBRARIES}/libcublasLt.so.13")));
        // What the runtime of NVIDIA puts into the container: the driver, and nvidia-smi.
        flags.extend([search.as_str(), "--env=NVIDIA_DRIVER_CAPABILITIES=compute,utility"]);
    }
    flags.extend(libraries.iter().map(String::as_str));
    let repository = prefix.map_or_else(|| REPOSITORY.to_owned(), |prefix| format!("{prefix}/hypic"));
    let files: Vec<_> = files.iter().map(|(source, target)| (source.clone(), target.as_str())).collect();
    let name = if binaries == Binaries::Cuda { "hypic-cuda" } else { "hypic" };
    make(name, &format!("{repository}:{tag}"), &flags, &files)
}

fn make(name: &str, reference: &str, flags: &[&str], files: &[(PathBuf, &str)]) -> Result<Archive> {
    let script = root().join("e2e/cluster/image/mkimage.py");
    let mut inputs = vec![script.clone()];
    inputs.extend(files.iter().map(|(source, _)| source.clone()));
    let targets: Vec<&str> = files.iter().map(|(_, target)| *target).collect();
    let key = format!("{} {reference} {} {}", digest(&inputs)?, flags.join(" "), targets.join(" "));
    let file = folder().join("images").join(name).with_extension("tar");
    cached(&file, &key, |part| {
        let mut command = Command::new("python3");
        command.arg(&script).arg(part).arg(reference).args(flags);
        for (source, target) in files {
            command.arg(format!("--file={}={target}", source.display()));
        }
        quietly(&mut command)
    })
    .with_context(|| format!("make image {reference}"))?;
    let size = fs::metadata(&file).with_context(|| format!("look at {}", file.display()))?.len();
    println!("{reference}: {} MB", size / 1_000_000);
    Ok(Archive { file, reference: reference.to_owned(), key })
}
