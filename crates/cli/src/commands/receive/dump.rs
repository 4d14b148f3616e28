//! Streams as text, one line for each command.
//!
//! The lines are those of `btrfs receive --dump`, with times in UTC.

use crate::fail::{Done, fail};
use butterfs::Timespec;
use butterfs::receive::{CommandSource, Termination};
use butterfs_format::send_stream::{Command, Encoding, SourceStamp};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// How commands are listed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Lines of text.
    Text,
    /// Lines of JSON.
    Json,
}

/// Lists all commands of a stream.
pub fn dump(reader: &mut dyn CommandSource, form: Form, termination: Termination) -> Done {
    let mut prefix = Vec::new();
    let mut ended = false;
    let mut any = false;
    while let Some((at, command)) = reader.read_command()? {
        any = true;
        ended = command == Command::End;
        match form {
            Form::Json => {
                let mut fact = fact(&command);
                if let Value::Object(map) = &mut fact {
                    map.insert("stream_offset".into(), at.offset.into());
                }
                say!("{fact}");
            }
            Form::Text if ended => {}
            Form::Text => say!("{}", line(&mut prefix, &command)),
        }
        if ended && termination == Termination::EndCommand {
            break;
        }
    }
    if any && !ended {
        return fail(format!(
            "the stream is cut at offset {}: the command that ends it",
            reader.position().offset
        ));
    }
    Ok(())
}

/// A command as a line. `subvolume` is the name under which paths are put. The
/// first command of a stream sets it.
pub fn line(subvolume: &mut Vec<u8>, command: &Command<'_>) -> String {
    let root = |prefix: &[u8], path: &[u8]| [b"./", prefix, b"/", path].concat();
    let path = match command {
        Command::Subvolume { path, .. } | Command::Snapshot { path, .. } => {
            *subvolume = path.to_vec();
            [b"./", &path[..]].concat()
        }
        _ => root(subvolume, command.path().unwrap_or_default()),
    };
    let (name, path) = (command.kind().name(), escaped(&path));
    let details = details(subvolume, command);
    if details.is_empty() {
        return format!("{name:<16}{path}");
    }
    format!("{name:<16}{path:<31} {details}")
}

fn details(subvolume: &[u8], command: &Command<'_>) -> String {
    let under = |path: &[u8]| [b"./", subvolume, b"/", path].concat();
    match *command {
        Command::Subvolume { stamp, .. } => stamp_text(stamp),
        Command::Snapshot { stamp, parent, .. } => format!(
            "{} parent_uuid={} parent_transid={}",
            stamp_text(stamp),
            uuid_text(&parent.uuid),
            parent.ctransid
        ),
        Command::MakeFile { .. }
        | Command::MakeDirectory { .. }
        | Command::Unlink { .. }
        | Command::RemoveDirectory { .. }
        | Command::End => String::new(),
        Command::MakeSpecial {
            kind: butterfs_format::send_stream::Special::Node,
            mode,
            rdev,
            ..
        } => format!("mode={mode:o} dev={rdev:#x}"),
        Command::MakeSpecial { .. } => String::new(),
        Command::Symlink { target, .. } => format!("dest={}", escaped(target)),
        Command::Rename { to, .. } => format!("dest={}", escaped(&under(to))),
        Command::Link { existing, .. } => format!("dest={}", escaped(existing)),
        Command::SetXattr { name, value, .. } => format!(
            "name={} data={} len={}",
            plain(name),
            plain(until_nul(value)),
            value.len()
        ),
        Command::RemoveXattr { name, .. } => format!("name={}", plain(name)),
        Command::Write { offset, data, .. } => format!("offset={offset} len={}", data.len()),
        Command::Clone(clone) => format!(
            "offset={} len={} from={} clone_offset={}",
            clone.offset,
            clone.length,
            plain(&under(clone.from_path)),
            clone.from_offset
        ),
        Command::Truncate { size, .. } => format!("size={size}"),
        Command::Chmod { mode, .. } => format!("mode={mode:o}"),
        Command::Chown { uid, gid, .. } => format!("gid={gid} uid={uid}"),
        Command::Times { times, .. } => format!(
            "atime={} mtime={} ctime={}",
            time_text(times.atime),
            time_text(times.mtime),
            time_text(times.ctime)
        ),
        Command::UpdateExtent { offset, length, .. } => format!("offset={offset} len={length}"),
        Command::Allocate {
            mode,
            offset,
            length,
            ..
        } => format!("mode={mode} offset={offset} len={length}"),
        Command::FileFlags { flags, .. } => format!("fileattr=0x{flags:x}"),
        Command::EncodedWrite(write) => format!(
            "offset={} len={}, unencoded_file_len={}, unencoded_len={}, unencoded_offset={}, \
             compression={}, encryption=0",
            write.offset,
            write.data.len(),
            write.file_length,
            write.length,
            write.skip,
            write.compression.map_or(0, Encoding::number)
        ),
        Command::EnableVerity {
            algorithm,
            block_size,
            salt,
            signature,
            ..
        } => format!(
            "algorithm={algorithm} block_size={block_size} salt_len={} sig_len={}",
            salt.len(),
            signature.len()
        ),
    }
}

fn fact(command: &Command<'_>) -> Value {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut fact = json!({ "command": command.kind().name() });
    let mut put = |name: &str, value: Value| {
        if let Value::Object(map) = &mut fact {
            map.insert(name.into(), value);
        }
    };
    if let Some(path) = command.path() {
        put("path", text(path).into());
    }
    match *command {
        Command::Subvolume { stamp, .. } => {
            put("uuid", uuid_text(&stamp.uuid).into());
            put("ctransid", stamp.ctransid.get().into());
        }
        Command::Snapshot { stamp, parent, .. } => {
            put("uuid", uuid_text(&stamp.uuid).into());
            put("ctransid", stamp.ctransid.get().into());
            put("parent_uuid", uuid_text(&parent.uuid).into());
            put("parent_ctransid", parent.ctransid.get().into());
        }
        Command::MakeFile { inode, .. } | Command::MakeDirectory { inode, .. } => {
            put("inode", inode.map(|inode| inode.get()).into());
        }
        Command::MakeSpecial {
            inode, mode, rdev, ..
        } => {
            put("inode", inode.map(|inode| inode.get()).into());
            put("mode", format!("{mode:o}").into());
            put("device", rdev.into());
        }
        Command::Symlink { inode, target, .. } => {
            put("inode", inode.map(|inode| inode.get()).into());
            put("target", text(target).into());
        }
        Command::Rename { to, .. } => put("to", text(to).into()),
        Command::Link { existing, .. } => put("existing", text(existing).into()),
        Command::SetXattr { name, value, .. } => {
            put("name", text(name).into());
            put("length", value.len().into());
        }
        Command::RemoveXattr { name, .. } => put("name", text(name).into()),
        Command::Write { offset, data, .. } => {
            put("offset", offset.get().into());
            put("length", data.len().into());
        }
        Command::Clone(clone) => {
            put("offset", clone.offset.get().into());
            put("length", clone.length.into());
            put("from_uuid", uuid_text(&clone.from.uuid).into());
            put("from_path", text(clone.from_path).into());
            put("from_offset", clone.from_offset.get().into());
        }
        Command::Truncate { size, .. } => put("size", size.into()),
        Command::Chmod { mode, .. } => put("mode", format!("{mode:o}").into()),
        Command::Chown { uid, gid, .. } => {
            put("uid", uid.into());
            put("gid", gid.into());
        }
        Command::Times { times, .. } => {
            put("atime", time_text(times.atime).into());
            put("mtime", time_text(times.mtime).into());
            put("ctime", time_text(times.ctime).into());
            put("otime", times.otime.map(time_text).into());
        }
        Command::UpdateExtent { offset, length, .. } => {
            put("offset", offset.get().into());
            put("length", length.into());
        }
        Command::Allocate {
            mode,
            offset,
            length,
            ..
        } => {
            put("mode", mode.into());
            put("offset", offset.get().into());
            put("length", length.into());
        }
        Command::FileFlags { flags, .. } => put("flags", flags.into()),
        Command::EncodedWrite(write) => {
            put("offset", write.offset.get().into());
            put("length", write.file_length.into());
            put("encoded_length", write.data.len().into());
            put("extent_length", write.length.into());
            put("extent_offset", write.skip.into());
            let number = write.compression.map_or(0, Encoding::number);
            put("compression", number.into());
        }
        Command::EnableVerity { algorithm, .. } => put("algorithm", algorithm.into()),
        Command::Unlink { .. } | Command::RemoveDirectory { .. } | Command::End => {}
    }
    fact
}

fn stamp_text(stamp: SourceStamp) -> String {
    format!("uuid={} transid={}", uuid_text(&stamp.uuid), stamp.ctransid)
}

fn uuid_text(uuid: &[u8; 16]) -> String {
    uuid::Uuid::from_bytes(*uuid).to_string()
}

fn until_nul(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().position(|byte| *byte == 0);
    &bytes[..end.unwrap_or(bytes.len())]
}

/// Text as it is. Bytes that are no text are escaped as in C.
fn plain(bytes: &[u8]) -> String {
    let mut text = String::new();
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            let _ = write!(text, "\\{byte:03o}");
        }
    }
    text
}

/// Bytes that would break a line or a column are escaped as in C.
fn escaped(path: &[u8]) -> String {
    let mut text = String::new();
    for byte in path {
        match *byte {
            b'\x07' => text.push_str("\\a"),
            b'\x08' => text.push_str("\\b"),
            b'\x1b' => text.push_str("\\e"),
            b'\x0c' => text.push_str("\\f"),
            b'\n' => text.push_str("\\n"),
            b'\r' => text.push_str("\\r"),
            b'\t' => text.push_str("\\t"),
            b'\x0b' => text.push_str("\\v"),
            b' ' => text.push_str("\\ "),
            b'\\' => text.push_str("\\\\"),
            0x21..0x7f => text.push(char::from(*byte)),
            other => {
                let _ = write!(text, "\\{other:03o}");
            }
        }
    }
    text
}

/// A time in UTC, in whole seconds as in the Btrfs tools.
fn time_text(time: Timespec) -> String {
    let days = time.seconds.div_euclid(86_400);
    let second = time.seconds.rem_euclid(86_400);
    // Days since 1 March of the year 0, so that leap days come last.
    let shifted = i128::from(days) + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year_of_era + era * 400 + i128::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}+0000",
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_date() {
        let text = |seconds| {
            time_text(Timespec {
                seconds,
                nanoseconds: 0,
            })
        };
        assert_eq!(text(0), "1970-01-01T00:00:00+0000");
        assert_eq!(text(1_000_000_000), "2001-09-09T01:46:40+0000");
        assert_eq!(text(951_782_400), "2000-02-29T00:00:00+0000");
        assert_eq!(text(-1), "1969-12-31T23:59:59+0000");
    }
}
