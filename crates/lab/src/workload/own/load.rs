//! What clients of a file server do: read from a load file of dbench, or
//! drawn.

use crate::stats::Random;
use std::fs;
use std::path::Path;

/// Operations of one client, in their order.
#[derive(Debug, PartialEq)]
pub(super) struct Load {
    /// The operations.
    pub(super) operations: Vec<Operation>,
}

/// An operation. Paths are relative to the client's directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    /// Opens a file; makes it when it is not there.
    Open { path: String, handle: u64 },
    /// Closes it.
    Close { handle: u64 },
    /// Writes.
    Write {
        handle: u64,
        offset: u64,
        length: u64,
    },
    /// Reads.
    Read {
        handle: u64,
        offset: u64,
        length: u64,
    },
    /// Makes it durable.
    Flush { handle: u64 },
    /// Looks at what is there.
    Stat { path: String },
    /// Looks for what is not there.
    Missing { path: String },
    /// Lists a directory.
    List { path: String },
    /// Makes a directory.
    Mkdir { path: String },
    /// Removes a file.
    Unlink { path: String },
    /// Renames a file.
    Rename { from: String, to: String },
    /// Removes all below a directory.
    DeleteTree { path: String },
}

/// A path of the load file below the client's directory; None for those
/// above it.
fn own_path(path: &str) -> Option<String> {
    let path = path.trim_matches('"').replace('\\', "/");
    let path = path.trim_start_matches('/');
    let rest = path.strip_prefix("clients/client1")?;
    Some(rest.trim_start_matches('/').to_owned())
}

impl Load {
    /// Reads a load file of dbench 4.
    pub(super) fn read(path: &Path) -> Result<Self, String> {
        let text = fs::read_to_string(path)
            .map_err(|error| format!("read the load file {}: {error}", path.display()))?;
        Self::parse(&text).map_err(|error| format!("{}: {error}", path.display()))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut operations = Vec::new();
        for (number, line) in text.lines().enumerate() {
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            let parsed = parse_line(line)
                .ok_or_else(|| format!("line {} is no operation: {line}", number + 1))?;
            operations.extend(parsed);
        }
        if operations.is_empty() {
            return Err("there are no operations".to_owned());
        }
        Ok(Self { operations })
    }

    /// A morning of an office: documents are made, saved under another name
    /// first, read again, listed; tables are changed in place.
    pub(super) fn drawn(seed: u64) -> Self {
        let mut drawing = Drawing {
            random: Random::new(seed ^ 0x0FF1CE),
            operations: vec![Operation::DeleteTree {
                path: String::new(),
            }],
            handle: 0,
            documents: Vec::new(),
        };
        for folder in 0..FOLDERS {
            drawing.operations.push(Operation::Mkdir {
                path: format!("folder{folder}"),
            });
        }
        for table in 0..4 {
            drawing.make(&format!("table{table}"), 512 << 10);
        }
        for document in 0..2000_u64 {
            drawing.moment(document);
        }
        Self {
            operations: drawing.operations,
        }
    }
}

const FOLDERS: usize = 8;

struct Drawing {
    random: Random,
    operations: Vec<Operation>,
    handle: u64,
    documents: Vec<(String, u64)>,
}

impl Drawing {
    fn open(&mut self, path: &str) -> u64 {
        self.handle += 1;
        self.operations.push(Operation::Open {
            path: path.to_owned(),
            handle: self.handle,
        });
        self.handle
    }

    /// Writes a file from its beginning to its end.
    fn make(&mut self, path: &str, size: u64) {
        let handle = self.open(path);
        let mut offset = 0;
        while offset < size {
            let length = (size - offset).min(64 << 10);
            self.operations.push(Operation::Write {
                handle,
                offset,
                length,
            });
            offset += length;
        }
        self.operations.push(Operation::Close { handle });
    }

    fn moment(&mut self, number: u64) {
        let is_known = !self.documents.is_empty();
        match self.random.below(10) {
            0..=2 => self.save(number),
            3..=5 if is_known => self.look(),
            6 | 7 => self.change_table(),
            8 if self.documents.len() > 40 => {
                let place = self.random.below(self.documents.len());
                let (path, _) = self.documents.swap_remove(place);
                self.operations.push(Operation::Unlink { path });
            }
            _ => {
                let path = format!("folder{}", self.random.below(FOLDERS));
                self.operations.push(Operation::List { path });
            }
        }
    }

    fn save(&mut self, number: u64) {
        let folder = self.random.below(FOLDERS);
        let path = format!("folder{folder}/document{number}");
        let size = (9.7 + 1.3 * self.random.normal()).exp().clamp(64.0, 2e6) as u64;
        self.operations
            .push(Operation::Missing { path: path.clone() });
        let new = format!("{path}.new");
        self.make(&new, size);
        if self.random.below(8) == 0 {
            let handle = self.open(&new);
            self.operations.push(Operation::Flush { handle });
            self.operations.push(Operation::Close { handle });
        }
        self.operations.push(Operation::Rename {
            from: new,
            to: path.clone(),
        });
        self.documents.push((path, size));
    }

    fn look(&mut self) {
        let place = self.random.below(self.documents.len());
        let (path, size) = self.documents[place].clone();
        self.operations.push(Operation::Stat { path: path.clone() });
        let handle = self.open(&path);
        let mut offset = 0;
        while offset < size {
            let length = (size - offset).min(32 << 10);
            self.operations.push(Operation::Read {
                handle,
                offset,
                length,
            });
            offset += length;
        }
        self.operations.push(Operation::Close { handle });
    }

    fn change_table(&mut self) {
        let path = format!("table{}", self.random.below(4));
        let handle = self.open(&path);
        for _ in 0..6 {
            let offset = self.random.below(127) as u64 * 4096;
            self.operations.push(Operation::Read {
                handle,
                offset,
                length: 4096,
            });
            if self.random.below(2) == 0 {
                self.operations.push(Operation::Write {
                    handle,
                    offset,
                    length: 4096,
                });
            }
        }
        self.operations.push(Operation::Close { handle });
    }
}

/// The operation of a line: `Some(None)` if the line is skipped, `None` if it
/// is not a line of a load file.
fn parse_line(line: &str) -> Option<Option<Operation>> {
    // Paths are in quotation marks and may have spaces.
    let mut words = Vec::new();
    let mut rest = line.trim();
    while !rest.is_empty() {
        let end = match rest.strip_prefix('"') {
            Some(inside) => inside.find('"')? + 2,
            None => rest.find(' ').unwrap_or(rest.len()),
        };
        words.push(&rest[..end]);
        rest = rest[end..].trim_start();
    }
    let is_ok = *words.last()? == "NT_STATUS_OK";
    let number = |place: usize| words.get(place)?.parse::<u64>().ok();
    let path = |place: usize| words.get(place).map(|word| own_path(word));
    Some(match *words.first()? {
        "NTCreateX" => {
            let flags = u64::from_str_radix(words.get(2)?.strip_prefix("0x")?, 16).ok()?;
            let handle = number(4)?;
            match path(1)? {
                None => None,
                Some(path) if !is_ok => Some(Operation::Missing { path }),
                // FILE_DIRECTORY_FILE.
                Some(path) if flags & 1 != 0 => Some(Operation::Mkdir { path }),
                Some(path) => Some(Operation::Open { path, handle }),
            }
        }
        "Close" => Some(Operation::Close { handle: number(1)? }),
        "WriteX" | "ReadX" => {
            let (handle, offset, length) = (number(1)?, number(2)?, number(3)?);
            Some(match words[0] {
                "WriteX" => Operation::Write {
                    handle,
                    offset,
                    length,
                },
                _ => Operation::Read {
                    handle,
                    offset,
                    length,
                },
            })
        }
        "Flush" => number(1).map(|handle| Operation::Flush { handle }),
        "QUERY_PATH_INFORMATION" => path(1)?.map(|path| match is_ok {
            true => Operation::Stat { path },
            false => Operation::Missing { path },
        }),
        "FIND_FIRST" => path(1)?.map(|path| {
            let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
            Operation::List {
                path: folder.to_owned(),
            }
        }),
        "Mkdir" => path(1)?.map(|path| Operation::Mkdir { path }),
        "Unlink" => path(1)?
            .filter(|_| is_ok)
            .map(|path| Operation::Unlink { path }),
        "Deltree" => path(1)?.map(|path| Operation::DeleteTree { path }),
        "Rename" => match (path(1)?, path(2)?) {
            (Some(from), Some(to)) if is_ok => Some(Operation::Rename { from, to }),
            _ => None,
        },
        "QUERY_FS_INFORMATION"
        | "QUERY_FILE_INFORMATION"
        | "SET_FILE_INFORMATION"
        | "LockX"
        | "UnlockX"
        | "Sleep" => None,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_dbenchs_load_file_are_understood() {
        let load = Load::parse(
            "Deltree \"\\clients\\client1\" NT_STATUS_OK\n\
             Mkdir \"\\clients\" NT_STATUS_OK\n\
             NTCreateX \"\\clients\\client1\\mixfile\" 0x40 0x1 9935 NT_STATUS_OBJECT_NAME_NOT_FOUND\n\
             NTCreateX \"\\clients\\client1\\~dmtmp\" 0x1 0x2 9937 NT_STATUS_OK\n\
             NTCreateX \"\\clients\\client1\\a b.000\" 0x40 0x2 9938 NT_STATUS_OK\n\
             WriteX 9938 65536 4096 4096 NT_STATUS_OK\n\
             FIND_FIRST \"\\clients\\client1\\~dmtmp\\*\" 260 1366 11 NT_STATUS_OK\n\
             LockX 9938 0 10 NT_STATUS_OK\n\
             Close 9938 NT_STATUS_OK\n",
        )
        .unwrap();
        let expected = [
            Operation::DeleteTree {
                path: String::new(),
            },
            Operation::Missing {
                path: "mixfile".to_owned(),
            },
            Operation::Mkdir {
                path: "~dmtmp".to_owned(),
            },
            Operation::Open {
                path: "a b.000".to_owned(),
                handle: 9938,
            },
            Operation::Write {
                handle: 9938,
                offset: 65536,
                length: 4096,
            },
            Operation::List {
                path: "~dmtmp".to_owned(),
            },
            Operation::Close { handle: 9938 },
        ];
        assert_eq!(load.operations, expected);
        for wrong in [
            "",
            "Dance 1 NT_STATUS_OK",
            "WriteX 1 x 3 3 NT_STATUS_OK",
            "Close \"a",
        ] {
            assert!(Load::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn debians_load_file_is_understood_whole() {
        let path = Path::new("/usr/share/dbench/client.txt");
        if !path.exists() {
            assert!(std::env::var_os("CI").is_none(), "CI has dbench");
            println!(
                "skipped: {} of the package dbench is not here",
                path.display()
            );
            return;
        }
        let load = Load::read(path).unwrap();
        let writes = |operation: &&Operation| matches!(operation, Operation::Write { .. });
        assert_eq!(load.operations.iter().filter(writes).count(), 39_502);
    }

    #[test]
    fn a_load_follows_from_its_seed() {
        assert_eq!(Load::drawn(1), Load::drawn(1));
        assert_ne!(Load::drawn(1), Load::drawn(2));
    }
}
