//! Files that change while the process runs: Kubernetes swaps mounted ConfigMaps and Secrets beneath it. They are
//! looked at again and again and told apart by what they hold; names and times say too little of a swapped link.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

/// Files of which somebody wants to know when they hold something else.
#[derive(Clone, Debug)]
pub struct Followed {
    paths: Vec<PathBuf>,
    seen: blake3::Hash,
}

impl Followed {
    /// What the files hold now is known.
    pub fn new(paths: Vec<PathBuf>) -> Self {
        let seen = digest(paths.iter().map(std::fs::read));
        Self { paths, seen }
    }

    /// Waits until they hold something else, looking every so often.
    pub async fn changed(&mut self, every: Duration) {
        loop {
            tokio::time::sleep(every).await;
            let read = futures::future::join_all(self.paths.iter().map(tokio::fs::read)).await;
            let now = digest(read.into_iter());
            if now != self.seen {
                self.seen = now;
                return;
            }
        }
    }
}

/// One digest over all contents; a file that cannot be read is told apart from an empty one.
fn digest(contents: impl Iterator<Item = std::io::Result<Vec<u8>>>) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    for content in contents {
        match content {
            Ok(bytes) => hasher.update(&[1]).update(&(bytes.len() as u64).to_le_bytes()).update(&bytes),
            Err(_) => hasher.update(&[0]),
        };
    }
    hasher.finalize()
}

/// A value that is read from files, and read anew when these change. Files that do not read keep the old value.
pub struct Live<T, E> {
    files: Followed,
    read: Box<dyn Fn() -> Result<T, E> + Send + Sync>,
    now: RwLock<Arc<T>>,
}

impl<T, E> Live<T, E> {
    /// Reads the value from `paths` by `read`.
    ///
    /// # Errors
    /// What `read` says.
    pub fn read(
        paths: Vec<PathBuf>,
        read: impl Fn() -> Result<T, E> + Send + Sync + 'static,
    ) -> Result<Self, E> {
        // Before the value is read: a change in between is seen later.
        let files = Followed::new(paths);
        let now = RwLock::new(Arc::new(read()?));
        Ok(Self { files, read: Box::new(read), now })
    }

    /// The value.
    pub fn now(&self) -> Arc<T> {
        Arc::clone(&self.now.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Looks every so often, for ever. `tell` learns once per change whether the new value is in use.
    pub async fn follow(&self, every: Duration, tell: impl Fn(Result<(), E>)) {
        let mut files = self.files.clone();
        loop {
            files.changed(every).await;
            tell((self.read)().map(|value| {
                *self.now.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(value);
            }));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    const OFTEN: Duration = Duration::from_millis(5);

    #[tokio::test]
    async fn a_swapped_link_is_a_change_and_the_same_content_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let (link, path) = (dir.path().join("data"), dir.path().join("data").join("file"));
        let swap = |to: &str, text: &str| {
            std::fs::create_dir(dir.path().join(to)).unwrap();
            std::fs::write(dir.path().join(to).join("file"), text).unwrap();
            let next = dir.path().join("next");
            std::os::unix::fs::symlink(to, &next).unwrap();
            std::fs::rename(next, &link).unwrap();
        };
        swap("one", "1");
        let mut followed = Followed::new(vec![path]);
        swap("two", "1");
        assert!(tokio::time::timeout(Duration::from_millis(60), followed.changed(OFTEN)).await.is_err());
        swap("three", "3");
        followed.changed(OFTEN).await;
        std::fs::remove_file(&link).unwrap();
        followed.changed(OFTEN).await;
    }

    #[tokio::test]
    async fn what_does_not_read_keeps_the_old_value_until_it_does() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let write = |text: &str| std::fs::write(file.path(), text).unwrap();
        write("1");
        let path = file.path().to_owned();
        let read = move || std::fs::read_to_string(&path).unwrap_or_default().parse::<u32>();
        let live = Arc::new(Live::read(vec![file.path().to_owned()], read).unwrap());
        let told = Arc::new(Mutex::new(Vec::new()));
        let following = tokio::spawn({
            let (live, told) = (Arc::clone(&live), Arc::clone(&told));
            async move { live.follow(OFTEN, |read| told.lock().unwrap().push(read.is_ok())).await }
        });
        let until = async |told_now: &[bool]| {
            while *told.lock().unwrap() != told_now {
                tokio::time::sleep(OFTEN).await;
            }
        };
        write("no number");
        until(&[false]).await;
        assert_eq!(*live.now(), 1);
        write("2");
        until(&[false, true]).await;
        assert_eq!(*live.now(), 2);
        following.abort();
    }
}
