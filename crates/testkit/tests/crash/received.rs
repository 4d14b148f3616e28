//! Receiving a small stream in a workload: every command is an operation of the
//! model. A subvolume that counts as received is whole.

use super::model::{Effect, Found, Model};
use super::world::{KINDS, Outcome, World, unique};
use butterfs::Access;
use butterfs::receive::{
    Begun, Left, NewSubvolume, Position, ReceiveOptions, Start, StreamReader, Target, TargetError,
    VolumeTarget, receive,
};
use butterfs::send::{Beginning, DataMode, SendOptions, SendRequest, StreamWriter};
use butterfs_device::RecordDevice;
use butterfs_format::send_stream::{Command, Version};
use std::sync::Arc;

/// What is sent. The snapshot is named SR.
const SOURCE: &str = "subvolume SA; create SA/a; write SA/a 0 20000; create SA/b; \
    write SA/b 0 100; mkdir SA/d; create SA/d/c; write SA/d/c 8192 9000; \
    link SA/a SA/d/l; attribute SA/b; create SA/gone; unlink SA/gone; snapshot SA SR; sync";

/// A stream of [`SOURCE`].
pub fn stream(version: Version) -> Vec<u8> {
    let mut world = World::new(KINDS[0]);
    world.run(SOURCE);
    let tree = world.volume.resolve(b"SR").expect("a snapshot").tree;
    let files = world.volume.files();
    files
        .set_subvolume_access(tree, Access::ReadOnly)
        .expect("a property");
    let mut out = StreamWriter::new(Vec::new(), version, Beginning::Header);
    let request = SendRequest {
        subvolume: tree,
        name: b"SR",
        parent: None,
        clone_sources: &[],
    };
    let options = SendOptions {
        version,
        data: DataMode::Plain,
        ..SendOptions::default()
    };
    files
        .send(&request, &options, &mut out)
        .expect("it is sent");
    out.finish().expect("memory")
}

/// Tells the model what each command does.
struct Told<'a> {
    inner: VolumeTarget,
    model: &'a mut Model,
    device: &'a RecordDevice,
    volume: &'a butterfs::Volume,
    name: String,
}

impl Told<'_> {
    fn now(&self) -> usize {
        self.device.recording().position().0
    }

    fn path(&self, path: &[u8]) -> String {
        format!("{}/{}", self.name, String::from_utf8_lossy(path))
    }

    /// What a command changes, once it is done.
    fn tell(&mut self, started: usize, command: &Command<'_>) {
        let at = command.path().map(|path| self.path(path));
        let at = at.unwrap_or_default();
        match command {
            Command::MakeFile { .. } | Command::MakeDirectory { .. } => {
                let made = self.volume.resolve(at.as_bytes()).expect("it was made");
                let number = unique(&self.name, made.number.get());
                self.model.bind(started, &at, Some(number));
                if matches!(command, Command::MakeFile { .. }) {
                    self.model.add_file(started, number);
                }
            }
            Command::Rename { to, .. } => {
                let to = self.path(to);
                self.model.rename(started, &at, &to);
            }
            Command::Link { existing, .. } => {
                let number = self.model.number(&self.path(existing));
                self.model.bind(started, &at, Some(number));
            }
            Command::Unlink { .. } | Command::RemoveDirectory { .. } => {
                self.model.bind(started, &at, None);
            }
            _ => {}
        }
    }

    /// What a command changes in a file, before it is done.
    fn foretell(&mut self, started: usize, command: &Command<'_>) {
        let Some(path) = command.path().map(|path| self.path(path)) else {
            return;
        };
        match command {
            Command::Write { offset, data, .. } => {
                let (number, start) = (self.model.number(&path), offset.get() as usize);
                let effect = Effect::Delayed;
                self.model.change_file(started, number, effect, |content| {
                    let end = start + data.len();
                    content.data.resize(content.data.len().max(end), 0);
                    content.data[start..end].copy_from_slice(data);
                });
            }
            Command::Truncate { size, .. } => {
                let number = self.model.number(&path);
                let effect = Effect::AtOnce;
                self.model.change_file(started, number, effect, |content| {
                    content.data.resize(*size as usize, 0);
                });
            }
            Command::SetXattr { value, .. } => {
                let number = self.model.number(&path);
                let effect = Effect::AtOnce;
                self.model.change_file(started, number, effect, |content| {
                    content.attribute = Some(value.to_vec());
                });
            }
            Command::Clone(_) | Command::EncodedWrite(_) => {
                panic!("the stream has what the model does not know")
            }
            _ => {}
        }
    }
}

impl Target for Told<'_> {
    fn begin(&mut self, new: &NewSubvolume, start: Start) -> Result<Begun, TargetError> {
        let started = self.now();
        self.model.begin(started);
        self.name = String::from_utf8_lossy(&new.name).into_owned();
        let root = unique(&self.name, 256);
        self.model.bind(started, &self.name, Some(root));
        let begun = self.inner.begin(new, start)?;
        let now = self.now();
        self.model.acknowledge_names(now);
        Ok(begun)
    }

    fn apply(&mut self, command: &Command<'_>) -> Result<(), TargetError> {
        let started = self.now();
        self.model.begin(started);
        self.foretell(started, command);
        self.inner.apply(command)?;
        self.inner.settle()?;
        self.tell(started, command);
        Ok(())
    }

    fn finish(&mut self) -> Result<(), TargetError> {
        let started = self.now();
        self.model.begin(started);
        self.model.received();
        self.inner.finish()?;
        let now = self.now();
        self.model.acknowledge_all(now);
        Ok(())
    }

    fn interrupt(&mut self, applied: Option<Position>) -> Result<Left, TargetError> {
        self.inner.interrupt(applied)
    }
}

impl World {
    /// Receives a stream, or as much of it as `part` of 8 says.
    pub fn receive(&mut self, version: &str, part: usize) -> Outcome<()> {
        let stream = stream(match version {
            "1" => Version::One,
            _ => Version::Two,
        });
        let cut = &stream[..stream.len() * part / 8];
        let files = Arc::clone(self.volume.files());
        let root = files.root();
        let mut target = Told {
            inner: VolumeTarget::new(files, root),
            model: &mut self.model,
            device: &self.device,
            volume: &self.volume,
            name: String::new(),
        };
        let mut reader = StreamReader::new(cut);
        let options = ReceiveOptions::default();
        let received = receive(&mut reader, &mut target, options, &mut |_, _| {});
        assert_eq!(received.failure.is_some(), part < 8, "{received:?}");
        Ok(())
    }
}

#[allow(dead_code, reason = "one of the tests asks")]
/// Errors with the reason if a subvolume that counts as received is not whole.
pub fn judge(volume: &butterfs::Volume, model: &Model, found: &Found) -> Result<(), String> {
    if !found.paths.contains_key("SR") {
        return Ok(());
    }
    let tree = volume.resolve(b"SR").map_err(|error| error.to_string())?;
    let item = volume.files().root_item(tree.tree);
    let item = item.map_err(|error| error.to_string())?;
    let known = item.received_uuid != [0; 16];
    let access = volume.files().subvolume_access(tree.tree);
    let sealed = access.map_err(|error| error.to_string())? == Access::ReadOnly;
    if !known && !sealed {
        return Ok(());
    }
    model.judge_whole("SR/", found)
}
