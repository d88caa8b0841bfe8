//! The few file operations of the disk tier, as a trait so that tests can make them fail.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::thread;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, Dir, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

/// Operations on the files of one folder. Names are plain: no folder is ever entered and no link followed.
pub trait DiskIo: Send + Sync {
    /// Makes a new file of these chunks; on return it has reached the drive.
    ///
    /// # Errors
    /// As the system says; a file may be left behind.
    fn write(&self, name: &str, chunks: &[&[u8]]) -> io::Result<()>;

    /// Gives a file another name.
    ///
    /// # Errors
    /// As the system says.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Makes names and removals before this point reach the drive.
    ///
    /// # Errors
    /// As the system says.
    fn sync(&self) -> io::Result<()>;

    /// A whole regular file. One of another kind or of a length outside `len` is [`io::ErrorKind::InvalidData`],
    /// and nothing is allocated for it.
    ///
    /// # Errors
    /// As the system says.
    fn read(&self, name: &str, len: RangeInclusive<u64>) -> io::Result<Vec<u8>>;

    /// Deletes a file or a link itself, never a folder.
    ///
    /// # Errors
    /// As the system says.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// The regular files of the folder with their lengths; everything else is left out.
    ///
    /// # Errors
    /// As the system says.
    fn list(&self) -> io::Result<Vec<(String, u64)>>;
}

/// A folder on a local drive, locked for this process.
#[derive(Debug)]
pub struct Drive {
    folder: OwnedFd,
}

impl Drive {
    /// Opens a folder, which is made if it is not there, and locks it. Waits up to a second for a former process
    /// that is still ending.
    ///
    /// # Errors
    /// As the system says; [`io::ErrorKind::WouldBlock`] if another process keeps it.
    pub fn open(folder: &Path) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::openat(CWD, folder, flags, Mode::empty())?;
        for last in [false; 20].into_iter().chain([true]) {
            match rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(error) if last || error != Errno::WOULDBLOCK => return Err(error.into()),
                Err(_) => thread::sleep(Duration::from_millis(50)),
            }
        }
        Ok(Self { folder })
    }
}

impl DiskIo for Drive {
    fn write(&self, name: &str, chunks: &[&[u8]]) -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(rustix::fs::openat(&self.folder, name, flags, Mode::RUSR | Mode::WUSR)?);
        for chunk in chunks {
            file.write_all(chunk)?;
        }
        file.sync_all()
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.folder, from, &self.folder, to)?)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::fsync(&self.folder)?)
    }

    fn read(&self, name: &str, len: RangeInclusive<u64>) -> io::Result<Vec<u8>> {
        // Non-blocking: opening a pipe that somebody put here must not hang.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let mut file = File::from(rustix::fs::openat(&self.folder, name, flags, Mode::empty())?);
        let found = file.metadata()?;
        if !found.is_file() || !len.contains(&found.len()) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut bytes = vec![0; found.len() as usize];
        file.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.folder, name, AtFlags::empty())?)
    }

    fn list(&self) -> io::Result<Vec<(String, u64)>> {
        let mut files = Vec::new();
        for entry in Dir::read_from(&self.folder)? {
            let entry = entry?;
            // Ours are all ASCII.
            let Ok(name) = entry.file_name().to_str() else { continue };
            let found = match rustix::fs::statat(&self.folder, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(found) => found,
                Err(Errno::NOENT) => continue,
                Err(error) => return Err(error.into()),
            };
            if FileType::from_raw_mode(found.st_mode) == FileType::RegularFile {
                files.push((name.to_owned(), found.st_size as u64));
            }
        }
        Ok(files)
    }
}
