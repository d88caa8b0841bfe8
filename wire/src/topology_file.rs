//! The topology file: what a process starts from, and what it may learn from again. Kubernetes brings a new one
//! into a running pod about a minute late, so whoever steers the fleet pushes as well; the newer of both wins.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;

use hypic_domain::topology::Topology;

use crate::follow::Followed;
use crate::{Error, proto};

/// How often the file is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// A file that holds the topology as JSON. Without it, or with nothing in it, there are no agents yet.
#[derive(Clone, Debug)]
pub struct TopologyFile {
    path: PathBuf,
    followed: Followed,
}

impl TopologyFile {
    /// The file at `path`. Changes are seen from this call on.
    pub fn new(path: PathBuf) -> Self {
        Self { followed: Followed::new(vec![path.clone()]), path }
    }

    /// What it says now.
    ///
    /// # Errors
    /// A file that cannot be read, is no topology, or names an address that nobody can dial.
    pub fn read(&self) -> Result<Topology, Error> {
        let path = || self.path.clone();
        let text = match std::fs::read_to_string(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Topology::default()),
            text => text.map_err(|source| Error::ReadTopology { path: path(), source })?,
        };
        if text.trim().is_empty() {
            return Ok(Topology::default());
        }
        let topology: Topology =
            serde_json::from_str(&text).map_err(|source| Error::ParseTopology { path: path(), source })?;
        // The same checks as of one that is pushed.
        Topology::try_from(proto::Topology::from(topology))
            .map_err(|source| Error::CheckTopology { path: path(), source: Box::new(source) })
    }

    /// Gives every new content to `adopt`, for ever. One that does not read is named in the log and left out.
    pub async fn follow(mut self, adopt: impl Fn(Topology)) {
        loop {
            self.followed.changed(LOOK).await;
            match self.read() {
                Ok(topology) => adopt(topology),
                Err(error) => {
                    let cause =
                        std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
                    tracing::error!(%error, cause, "the topology stays as it is");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    fn read(text: &str) -> Result<Topology, Error> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        TopologyFile::new(file.path().to_owned()).read()
    }

    #[test]
    fn a_file_that_is_not_there_or_empty_names_no_agent() {
        assert_eq!(read(" \n").unwrap(), Topology::default());
        assert_eq!(TopologyFile::new("/nowhere/topology.json".into()).read().unwrap(), Topology::default());
    }

    #[test]
    fn what_is_wrong_is_said_by_file_and_place() {
        let agent =
            r#"{"id": "a", "role": "combine", "control": "[fd00::7]:7400", "bulk": "a.b.ns.svc:7401"}"#;
        assert_eq!(read(&format!(r#"{{"epoch": 3, "agents": [{agent}]}}"#)).unwrap().version().1, 0);
        let bare = agent.replace("[fd00::7]", "fd00::7");
        let refused = read(&format!(r#"{{"epoch": 3, "agents": [{bare}]}}"#)).unwrap_err();
        assert!(refused.source().unwrap().to_string().contains("without brackets"), "{refused}");
        assert!(matches!(read(r#"{"agents": []}"#), Err(Error::ParseTopology { .. })));
        assert!(matches!(read(r#"{"epoch": 1, "agent": []}"#), Err(Error::ParseTopology { .. })));
    }
}
