//! Files that take long to make, kept with the digest of what they were made from.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::shell::scratch;

/// Where they lie.
pub(crate) fn folder() -> PathBuf {
    scratch().join("cluster")
}

/// Makes `file` unless it was made under this key before; `make` gets the path to write to. Says whether it did.
pub(crate) fn cached(file: &Path, key: &str, make: impl FnOnce(&Path) -> Result<()>) -> Result<bool> {
    let folder = file.parent().unwrap_or(file);
    fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    // Another lab may be making the same.
    let lock = File::open(folder).with_context(|| format!("open {}", folder.display()))?;
    lock.lock().with_context(|| format!("lock {}", folder.display()))?;
    let key_file = beside(file, ".key");
    if file.exists() && fs::read_to_string(&key_file).is_ok_and(|made| made == key) {
        return Ok(false);
    }
    let part = beside(file, ".part");
    make(&part)?;
    fs::rename(&part, file).with_context(|| format!("move {} into place", file.display()))?;
    fs::write(&key_file, key).with_context(|| format!("write {}", key_file.display()))?;
    Ok(true)
}

/// Digest of files' names and contents, folders included.
pub(crate) fn digest(paths: &[PathBuf]) -> Result<String> {
    let mut hasher = blake3::Hasher::new();
    for path in paths {
        add(path, &mut hasher)?;
    }
    Ok(hasher.finalize().to_hex().to_string())
}

fn add(path: &Path, hasher: &mut blake3::Hasher) -> Result<()> {
    let context = || format!("read {}", path.display());
    if path.is_dir() {
        let entries = fs::read_dir(path).with_context(context)?;
        let mut inside =
            entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>().with_context(context)?;
        inside.sort();
        return inside.iter().try_for_each(|path| add(path, hasher));
    }
    let bytes = fs::read(path).with_context(context)?;
    let name = path.file_name().unwrap_or_default().as_encoded_bytes();
    for part in [name, &bytes] {
        hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
    }
    Ok(())
}

/// Does what needs somebody else's server, up to four times.
pub(crate) fn retry<T>(what: &str, mut work: impl FnMut() -> Result<T>) -> Result<T> {
    for pause in [2, 5, 15] {
        match work() {
            Ok(done) => return Ok(done),
            Err(fault) => println!("{what}: {fault:#}; once more in {pause} s"),
        }
        sleep(Duration::from_secs(pause));
    }
    work().with_context(|| format!("{what} (4 tries)"))
}

fn beside(file: &Path, end: &str) -> PathBuf {
    let mut name = OsString::from(file);
    name.push(end);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_again_only_under_another_key() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("deep").join("file");
        let write = |part: &Path| Ok(fs::write(part, "made")?);
        assert!(cached(&file, "one", write).unwrap());
        assert!(!cached(&file, "one", write).unwrap());
        assert!(cached(&file, "two", write).unwrap());
    }

    #[test]
    fn what_failed_is_not_kept() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        assert!(cached(&file, "one", |_| anyhow::bail!("no")).is_err());
        assert!(cached(&file, "one", |part| Ok(fs::write(part, "")?)).unwrap());
    }

    #[test]
    fn digest_sees_names_and_contents() {
        let folder = tempfile::tempdir().unwrap();
        let of = |name: &str, text: &str| {
            let file = folder.path().join(name);
            fs::write(&file, text).unwrap();
            let seen = digest(&[folder.path().to_owned()]).unwrap();
            fs::remove_file(file).unwrap();
            seen
        };
        assert_eq!(of("a", "1"), of("a", "1"));
        assert_ne!(of("a", "1"), of("a", "2"));
        assert_ne!(of("a", "1"), of("b", "1"));
    }
}
