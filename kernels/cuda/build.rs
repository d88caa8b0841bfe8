//! Builds the kernels: as machine code with nvcc (feature `cuda`), as host code with the C++ compiler
//! (feature `fibers`).

fn main() {
    println!("cargo::rerun-if-changed=device");
    #[cfg(feature = "fibers")]
    fibers();
    #[cfg(feature = "cuda")]
    nvcc::modules();
}

#[cfg(feature = "fibers")]
fn fibers() {
    // setjmp between stacks is what fibers are; the fortified longjmp refuses it.
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .opt_level(2)
        .flag("-U_FORTIFY_SOURCE")
        .flag("-Wno-unknown-pragmas")
        // getcontext and setjmp return twice by declaration; here each context is entered once.
        .flag_if_supported("-Wno-clobbered")
        .file("device/fiber.cpp")
        .compile("hypic_fibers");
}

#[cfg(feature = "cuda")]
mod nvcc {
    use std::env::var_os;
    use std::path::{Path, PathBuf};
    use std::process::Command;
    use std::{fs, io};

    // One fat binary per file: machine code for Ampere and Hopper, PTX for every other card.
    const PORTABLE: [&str; 3] = [
        "-gencode=arch=compute_80,code=sm_80",
        "-gencode=arch=compute_90a,code=sm_90a",
        "-gencode=arch=compute_80,code=compute_80",
    ];
    // Files named so use wgmma and bulk copies, which exist on sm_90a alone.
    const HOPPER: &str = "_hopper";
    // Three blocks of this one fit on a multiprocessor when the assembler is told that registers are short.
    const SHORT_OF_REGISTERS: &str = "gdn_scan_hopper";

    pub(super) fn modules() {
        for name in ["NVCC", "CUDA_HOME"] {
            println!("cargo::rerun-if-env-changed={name}");
        }
        let out = PathBuf::from(var_os("OUT_DIR").expect("cargo sets OUT_DIR for build scripts"));
        let nvcc = compiler();
        let mut files: Vec<PathBuf> = fs::read_dir("device")
            .and_then(|entries| entries.map(|entry| entry.map(|e| e.path())).collect::<io::Result<_>>())
            .expect("the package has a folder device/");
        files.retain(|path| path.extension().is_some_and(|e| e == "cu"));
        files.sort();
        let mut table = String::from("pub(crate) static MODULES: &[Module] = &[\n");
        let mut report = String::new();
        for file in &files {
            let stem = file.file_stem().expect("it has an extension").to_string_lossy().into_owned();
            let hopper = stem.ends_with(HOPPER);
            let image = out.join(format!("{stem}.fatbin"));
            let arguments = arguments_of(&stem, if hopper { &PORTABLE[1..2] } else { &PORTABLE });
            let command = format!("{} {}\n", nvcc.display(), arguments.join(" "));
            // An image of the same command that is newer than its file and all headers is still right; one file
            // takes seconds, all of them a minute.
            let log = out.join(format!("{stem}.log"));
            let built = match fs::read_to_string(&log) {
                Ok(report) if report.starts_with(&command) && newer(&log, file) => report,
                _ => command + &compile(&nvcc, file, &image, &arguments),
            };
            fs::write(&log, &built).expect("OUT_DIR is writable");
            let kernels = entries(&built);
            table += &format!(
                "    Module {{ hopper: {hopper}, kernels: &{kernels:?}, image: include_bytes!({image:?}) }},\n"
            );
            report += &built;
        }
        fs::write(out.join("modules.rs"), table + "];\n").expect("OUT_DIR is writable");
        fs::write(out.join("registers.txt"), report).expect("OUT_DIR is writable");
    }

    /// Whether `log` is newer than `file` and every header beside it.
    fn newer(log: &Path, file: &Path) -> bool {
        let changed = |path: &Path| fs::metadata(path).and_then(|data| data.modified()).ok();
        let headers = fs::read_dir("device").into_iter().flatten().flatten().map(|entry| entry.path());
        let headers = headers.filter(|path| path.extension().is_some_and(|e| e == "cuh"));
        headers.chain([file.to_owned()]).all(|path| changed(&path) < changed(log))
    }

    /// The kernels of one file, from the assembler's report.
    fn entries(report: &str) -> Vec<&str> {
        let mut names: Vec<&str> = report
            .lines()
            .filter_map(|line| line.split("Compiling entry function '").nth(1)?.split('\'').next())
            .collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// `$NVCC`, `$CUDA_HOME/bin/nvcc`, what toolchain.sh made, or the PATH's.
    fn compiler() -> PathBuf {
        let made = Path::new("../../target/cuda-13.0/bin/nvcc");
        var_os("NVCC")
            .map(PathBuf::from)
            .or_else(|| var_os("CUDA_HOME").map(|home| Path::new(&home).join("bin/nvcc")))
            .or_else(|| fs::canonicalize(made).ok())
            .unwrap_or_else(|| "nvcc".into())
    }

    /// How the file of this name is compiled.
    fn arguments_of<'a>(stem: &str, targets: &[&'a str]) -> Vec<&'a str> {
        let plain_copies = var_os("CARGO_FEATURE_PLAIN_COPIES").map(|_| "-DHYPIC_PLAIN_COPIES");
        let short = (stem == SHORT_OF_REGISTERS).then_some("-Xptxas=--register-usage-level=3");
        let all = ["-fatbin", "-O3", "-std=c++17", "--expt-relaxed-constexpr", "-lineinfo", "-Xptxas", "-v"];
        plain_copies.into_iter().chain(short).chain(all).chain(targets.iter().copied()).collect()
    }

    /// Compiles one file and returns the compiler's report. A kernel that spills, or whose wgmmas the
    /// assembler serializes, fails the build.
    #[allow(clippy::panic, reason = "a build script has no other way to say what went wrong")]
    fn compile(nvcc: &Path, source: &Path, image: &Path, arguments: &[&str]) -> String {
        let output =
            Command::new(nvcc).args(arguments).arg("-o").arg(image).arg(source).output().unwrap_or_else(
                |e| panic!("cannot start {}: {e}; kernels/cuda/toolchain.sh installs it", nvcc.display()),
            );
        let report = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{}: {report}", source.display());
        for line in report.lines() {
            let spills =
                line.contains("spill") && !line.contains("0 bytes spill stores, 0 bytes spill loads");
            assert!(!spills && !line.contains("serialized"), "{}: {line}", source.display());
        }
        report
    }
}
