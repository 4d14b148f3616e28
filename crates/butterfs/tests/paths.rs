//! The library by paths: files, directories, names, attributes, snapshots,
//! streams, whole volumes, and its errors.

use butterfs::{
    Content, DirEntry, Error, File, FileOptions, FsError, MkfsOptions, NewInode, OpenOptions,
    Owner, ReadDir, SetAttributes, SetTime, SnapshotAccess, StoreError, Timespec, Volume, Walk,
    make_volume, make_volume_on,
};
use std::ffi::OsString;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

const SIZE: u64 = 256 << 20;

struct Bench {
    folder: tempfile::TempDir,
    volume: Volume,
}

impl Bench {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a directory");
        let image = folder.path().join("disk.img");
        make_volume(&image, SIZE, &MkfsOptions::default()).expect("a volume");
        let volume = Volume::open(&image, OpenOptions::default()).expect("it opens");
        Self { folder, volume }
    }

    fn image(&self) -> PathBuf {
        self.folder.path().join("disk.img")
    }

    /// Closes the volume, checks it, and opens it again.
    fn again(self) -> Self {
        self.volume.close().expect("it closes");
        let report = butterfs::check(self.image()).expect("a check");
        assert!(report.is_exact(), "{:?}", report.faults);
        let volume = Volume::open(self.image(), OpenOptions::default()).expect("it opens");
        Self { volume, ..self }
    }
}

/// The kind of an error. The error must name the path.
fn kind<T: std::fmt::Debug>(result: Result<T, Error>, path: &str) -> ErrorKind {
    let error = result.expect_err("an error");
    let said = error.to_string();
    assert!(said.contains(path), "{said} does not name {path}");
    let kind = error.kind();
    let error = io::Error::from(error);
    assert_eq!((error.kind(), error.to_string()), (kind, said));
    kind
}

#[test]
fn what_is_open_goes_to_other_threads() {
    const fn is_shared<T: Send + Sync>() {}
    const fn is_sent<T: Send>() {}
    is_shared::<Volume>();
    is_shared::<File>();
    is_shared::<DirEntry>();
    is_shared::<Error>();
    is_sent::<ReadDir>();
}

#[test]
fn files_read_write_and_seek() {
    let bench = Bench::new();
    let volume = &bench.volume;
    let mut file = volume.create_file("/file").expect("a file");
    file.write_all(b"0123456789").expect("written");
    file.seek(SeekFrom::Start(4)).expect("a position");
    file.write_all(b"xy").expect("written");
    assert_eq!(file.seek(SeekFrom::End(-3)).expect("a position"), 7);
    let mut rest = String::new();
    file.read_to_string(&mut rest).expect("read");
    assert_eq!(rest, "789");
    assert!(file.seek(SeekFrom::Current(-11)).is_err());
    // Beyond the end is a hole.
    file.seek(SeekFrom::Start(100_000)).expect("a position");
    file.write_all(b"!").expect("written");
    assert_eq!(file.size().expect("a size"), 100_001);
    file.sync_all().expect("durable");
    file.set_len(6).expect("cut");

    let mut appended = FileOptions::new()
        .append(true)
        .open(volume, "/file")
        .expect("it opens");
    file.write_at(b"ab", 0).expect("written");
    appended.write_all(b"end").expect("written");
    assert_eq!(volume.read_file("file").expect("content"), b"ab23xyend");
    assert_eq!(
        kind(appended.read_at(&mut [0; 1], 0), "/file"),
        ErrorKind::PermissionDenied
    );
    let reader = volume.open_file(Path::new("/file")).expect("it opens");
    assert_eq!(
        kind(reader.write_at(b"x", 0), "/file"),
        ErrorKind::PermissionDenied
    );
    assert_eq!(
        kind(reader.set_len(0), "/file"),
        ErrorKind::PermissionDenied
    );

    let new = FileOptions::new().write(true).create_new(true);
    assert_eq!(
        kind(new.open(volume, "/file"), "/file"),
        ErrorKind::AlreadyExists
    );
    let new = new.mode(0o600).open(volume, "/new").expect("a file");
    assert_eq!(new.attributes().expect("attributes").mode, 0o100_600);
    let nothing = FileOptions::new().open(volume, "/file");
    assert_eq!(kind(nothing, "/file"), ErrorKind::InvalidInput);
    assert_eq!(
        kind(volume.open_file("/none"), "/none"),
        ErrorKind::NotFound
    );
    volume.create_dir("/dir").expect("a directory");
    assert_eq!(
        kind(volume.open_file("/dir"), "/dir"),
        ErrorKind::IsADirectory
    );
    assert_eq!(
        kind(volume.create_file("/file/below"), "/file/below"),
        ErrorKind::NotADirectory
    );
    drop((file, appended, reader, new));
    bench.again();
}

#[test]
fn a_file_outlives_its_name() {
    let bench = Bench::new();
    let volume = &bench.volume;
    let mut file = volume.create_file("/gone").expect("a file");
    file.write_all(&[7; 300_000]).expect("written");
    volume.sync().expect("durable");
    volume.remove_file("/gone").expect("removed");
    assert!(!volume.exists("/gone").expect("an answer"));
    file.rewind().expect("a position");
    let mut content = Vec::new();
    file.read_to_end(&mut content).expect("read");
    assert_eq!(content, [7; 300_000]);
    volume.sync().expect("durable");
    let before = volume.usage().used();
    drop(file);
    volume.sync().expect("durable");
    assert!(volume.usage().used() + 290_000 < before);
    bench.again();
}

#[test]
fn names_move_as_in_the_standard_library() {
    let bench = Bench::new();
    let volume = &bench.volume;
    volume.create_dir_all("/a/b/c").expect("directories");
    volume.create_dir_all("a/b/c/").expect("they are there");
    volume.write_file("/a/one", b"1").expect("written");
    volume
        .write_file(String::from("/a/two"), b"2")
        .expect("written");
    volume.rename("/a/one", "/a/two").expect("renamed");
    assert_eq!(volume.read_file("/a/two").expect("content"), b"1");
    assert_eq!(
        kind(volume.rename("/a/one", "/x"), "/a/one"),
        ErrorKind::NotFound
    );
    volume.hard_link("/a/two", "/three").expect("a link");
    assert_eq!(volume.attributes("/three").expect("attributes").nlink, 2);

    volume.symlink("a/two", "/link").expect("a link");
    assert_eq!(
        volume.read_link("/link").expect("a target"),
        Path::new("a/two")
    );
    let mut through = volume.open_file("/link").expect("it follows");
    let mut text = String::new();
    through.read_to_string(&mut text).expect("read");
    assert_eq!(text, "1");
    volume.symlink("nowhere", "/dangling").expect("a link");
    assert!(volume.exists("/dangling").expect("an answer"));
    assert_eq!(
        kind(volume.open_file("/dangling"), "/dangling"),
        ErrorKind::NotFound
    );
    assert_eq!(
        kind(volume.create_file("/dangling"), "/dangling"),
        ErrorKind::NotFound
    );
    volume.symlink("around", "/around").expect("a link");
    let error = volume.read_dir("/around").expect_err("a circle");
    assert!(matches!(
        error,
        Error::At {
            error: FsError::LinkLoop,
            ..
        }
    ));

    let error = volume.remove_dir("/a").expect_err("it is not empty");
    assert!(
        error
            .next_step()
            .expect("a step")
            .contains("remove_dir_all")
    );
    assert_eq!(error.kind(), ErrorKind::DirectoryNotEmpty);
    assert_eq!(
        kind(volume.remove_file("/a"), "/a"),
        ErrorKind::IsADirectory
    );
    assert_eq!(
        kind(volume.create_dir_all("/three/x"), "/three"),
        ErrorKind::NotADirectory
    );
    assert_eq!(
        kind(volume.create_dir_all("/three"), "/three"),
        ErrorKind::NotADirectory
    );
    volume.reflink("/a", "/copy").expect("a copy");
    volume.remove_dir_all("/a").expect("removed");
    assert_eq!(kind(volume.remove_dir_all("/a"), "/a"), ErrorKind::NotFound);
    assert_eq!(volume.read_file("/copy/two").expect("content"), b"1");

    let bytes = b"/n\xff\xfe";
    volume.write_file(bytes, b"any bytes").expect("written");
    let host = PathBuf::from(OsString::from_vec(bytes.to_vec()));
    assert_eq!(volume.read_file(host).expect("content"), b"any bytes");
    bench.again();
}

#[test]
fn directories_are_read_in_pieces() {
    let bench = Bench::new();
    let volume = &bench.volume;
    volume.create_dir("/many").expect("a directory");
    for number in 0..1000 {
        volume
            .write_file(format!("/many/{number}"), b"")
            .expect("written");
    }
    volume.create_subvolume("/many/sub").expect("a subvolume");
    let mut names = Vec::new();
    for entry in volume.read_dir("/many").expect("entries") {
        let entry = entry.expect("an entry");
        assert_eq!(entry.path(), Path::new("/many").join(entry.file_name()));
        assert_eq!(entry.is_subvolume(), entry.file_name() == "sub");
        assert_eq!(
            entry.attributes().expect("attributes").is_directory(),
            entry.is_subvolume()
        );
        names.push(entry.file_name().to_owned());
        // What is made or removed meanwhile does not disturb the rest.
        volume
            .write_file(format!("/many/new{}", names.len()), b"")
            .expect("written");
    }
    let expected: Vec<OsString> = (0..1000).map(|number| number.to_string().into()).collect();
    assert_eq!((&names[..1000], names.len()), (&expected[..], 1001));
    assert_eq!(
        kind(volume.read_dir("/many/1"), "/many/1"),
        ErrorKind::NotADirectory
    );
    assert_eq!(volume.read_dir("/many/sub").expect("entries").count(), 0);
    bench.again();
}

#[test]
fn attributes_and_extended_attributes() {
    let bench = Bench::new();
    let volume = &bench.volume;
    volume.write_file("/file", b"x").expect("written");
    let set = SetAttributes {
        mode: Some(0o640),
        uid: Some(1000),
        ..SetAttributes::default()
    };
    volume.set_attributes("/file", &set).expect("set");
    let attributes = volume.attributes("/file").expect("attributes");
    assert_eq!((attributes.mode, attributes.uid), (0o100_640, 1000));
    assert_eq!(volume.xattr("/file", "user.a").expect("an answer"), None);
    volume.set_xattr("/file", "user.a", b"value").expect("set");
    assert_eq!(
        volume.xattr("/file", "user.a").expect("an answer"),
        Some(b"value".to_vec())
    );
    assert_eq!(volume.xattrs("/file").expect("names"), ["user.a"]);
    volume.remove_xattr("/file", "user.a").expect("removed");
    assert!(volume.remove_xattr("/file", "user.a").is_err());
    assert!(volume.set_xattr("/file", "nonsense", b"").is_err());
    bench.again();
}

#[test]
fn what_the_kernel_would_not_understand_is_refused_or_left_out() {
    let bench = Bench::new();
    let volume = &bench.volume;
    volume.write_file("/file", b"x").expect("written");
    let set = |set: &SetAttributes| volume.set_attributes("/file", set);
    set(&SetAttributes {
        mode: Some(0o7_200_640),
        ..SetAttributes::default()
    })
    .expect("set");
    assert_eq!(volume.attributes("/file").expect("there").mode, 0o100_640);
    let late = Timespec {
        seconds: 1,
        nanoseconds: 1_000_000_000,
    };
    let refused = set(&SetAttributes {
        mtime: Some(SetTime::At(late)),
        ..SetAttributes::default()
    });
    assert_eq!(kind(refused, "/file"), ErrorKind::InvalidInput);
    let refused = volume.symlink("a\0b", "/link");
    assert_eq!(kind(refused, "/link"), ErrorKind::InvalidInput);
    volume.create_dir_all("/d/e").expect("made");
    for path in ["/d/..", "/d/.", "/."] {
        volume.remove_dir_all(path).expect_err("an error");
    }
    volume.attributes("/d/e").expect("still there");
    volume.attributes("/file").expect("still there");
}

#[test]
fn a_walk_goes_to_the_bottom() {
    const LEVELS: usize = 5000;
    let bench = Bench::new();
    let files = bench.volume.files();
    let mut at = files.root();
    for _ in 0..LEVELS {
        let new = NewInode::new(0o040_755, Owner::default());
        at = files.create(at, b"d", &new).expect("a directory").id;
    }
    let mut found = 0;
    let walked = bench.volume.walk::<Error>(files.root(), &mut |_| {
        found += 1;
        Ok(Walk::Enter)
    });
    walked.expect("walked");
    assert_eq!(found, LEVELS + 1);
}

#[test]
fn snapshots_and_streams() {
    let bench = Bench::new();
    let volume = &bench.volume;
    volume.create_subvolume("/home").expect("a subvolume");
    volume
        .write_file("/home/list", &[1; 50_000])
        .expect("written");
    volume
        .snapshot("/home", "/one", SnapshotAccess::ReadOnly)
        .expect("a snapshot");
    volume.write_file("/home/other", b"new").expect("written");
    volume
        .snapshot("/home", "/two", SnapshotAccess::ReadOnly)
        .expect("a snapshot");

    let write = volume
        .write_file("/two/other", b"x")
        .expect_err("read-only");
    assert_eq!(write.kind(), ErrorKind::ReadOnlyFilesystem);
    assert!(
        write
            .next_step()
            .expect("a step")
            .contains("set_subvolume_access")
    );
    let mut whole = Vec::new();
    let unsent = volume
        .send("/home", &mut whole)
        .expect_err("it is writable");
    assert!(unsent.to_string().contains("not read-only"), "{unsent}");
    whole.clear();
    let bytes = volume.send("/one", &mut whole).expect("sent");
    assert_eq!(bytes, whole.len() as u64);
    let mut changes = Vec::new();
    volume
        .send_changes("/one", "/two/", &mut changes)
        .expect("sent");
    assert!(changes.len() * 10 < whole.len());

    let second = Bench::new();
    let backup = &second.volume;
    backup.create_dir("/backups").expect("a directory");
    let early = backup.receive("/backups", io::Cursor::new(changes.clone()));
    assert!(early.is_err_and(|error| error.to_string().contains("is based on")));
    let cut = whole[..whole.len() - 20].to_vec();
    assert!(backup.receive("/", io::Cursor::new(cut)).is_err());
    backup.delete_subvolume("/one").expect("what is left of it");
    let received = backup
        .receive("/backups", io::Cursor::new(whole))
        .expect("received");
    assert_eq!(received[0].name, b"one");
    backup
        .receive("/backups", io::Cursor::new(changes))
        .expect("received");
    assert_eq!(
        backup.read_file("/backups/two/other").expect("content"),
        b"new"
    );
    assert!(backup.write_file("/backups/two/other", b"x").is_err());

    volume
        .set_subvolume_access("/one", SnapshotAccess::ReadWrite)
        .expect("writable");
    volume.write_file("/one/more", b"x").expect("written");
    volume.set_default_subvolume("/home").expect("set");
    assert!(volume.delete_subvolume("/home").is_err());
    volume.delete_subvolume("/one").expect("deleted");
    volume.delete_subvolume("/two").expect("deleted");
    assert!(
        volume
            .delete_subvolume("/two")
            .is_err_and(|e| e.kind() == ErrorKind::NotFound)
    );
    volume.free_deleted().expect("freed");
    let bench = bench.again();
    // What a mount shows is `/home` now.
    assert!(bench.volume.exists("/list").expect("an answer"));
    second.again();
}

#[test]
fn after_a_close_every_call_is_an_error() {
    let bench = Bench::new();
    let volume = &bench.volume;
    volume.write_file("/file", b"x").expect("written");
    let mut file = volume.create_file("/other").expect("a file");
    let mut entries = volume.read_dir("/").expect("entries");
    let entry = entries.next().expect("one").expect("an entry");
    volume.close().expect("it closes");
    let closed = |result: Result<(), Error>| {
        let error = result.expect_err("an error");
        let said = error.to_string();
        assert!(said.contains("the volume is closed"), "{said}");
        assert!(matches!(
            error,
            Error::Store(StoreError::Closed)
                | Error::At {
                    error: FsError::Store(StoreError::Closed),
                    ..
                }
        ));
    };
    closed(file.read_at(&mut [0; 4], 0).map(drop));
    closed(file.write_at(b"x", 0).map(drop));
    closed(file.set_len(0));
    closed(file.sync_all());
    closed(file.attributes().map(drop));
    assert!(file.write_all(b"x").is_err());
    assert!(file.seek(SeekFrom::End(0)).is_err());
    closed(entry.attributes().map(drop));
    closed(volume.open_file("/file").map(drop));
    closed(volume.create_file("/new").map(drop));
    closed(volume.read_dir("/").map(drop));
    closed(volume.exists("/file").map(drop));
    closed(volume.create_dir_all("/x").map(drop));
    closed(volume.remove_file("/file"));
    closed(volume.remove_dir_all("/file"));
    closed(volume.rename("/file", "/new"));
    closed(volume.hard_link("/file", "/new"));
    closed(volume.symlink("file", "/new"));
    closed(volume.read_link("/file").map(drop));
    closed(volume.reflink("/file", "/new"));
    closed(volume.xattr("/file", "user.a").map(drop));
    closed(volume.set_xattr("/file", "user.a", b""));
    closed(volume.xattrs("/file").map(drop));
    closed(volume.set_attributes("/file", &SetAttributes::default()));
    closed(volume.create_subvolume("/new").map(drop));
    closed(
        volume
            .snapshot("/", "/new", SnapshotAccess::ReadOnly)
            .map(drop),
    );
    closed(volume.delete_subvolume("/new").map(drop));
    closed(volume.free_deleted());
    closed(volume.set_subvolume_access("/", SnapshotAccess::ReadOnly));
    let devices = format!("{volume:?}");
    assert!(
        devices.contains("disk.img") && devices.len() < 200,
        "{devices}"
    );
    assert!(format!("{file:?}{entry:?}{entries:?}").len() < 2000);
    closed(volume.send("/", io::sink()).map(drop));
    closed(volume.receive("/", io::empty()).map(drop));
    closed(volume.scrub(butterfs::scrub::Repair::ReportOnly).map(drop));
    drop(file);
    bench_reopens(&bench);
}

fn bench_reopens(bench: &Bench) {
    let volume = Volume::open(bench.image(), OpenOptions::read_only()).expect("it opens");
    assert_eq!(volume.read_file("/file").expect("content"), b"x");
    let refused = volume.write_file("/file", b"y").expect_err("read-only");
    assert_eq!(refused.kind(), ErrorKind::ReadOnlyFilesystem);
    assert!(refused.next_step().expect("a step").contains("OpenOptions"));
    assert!(volume.create_file("/file").is_err());
    assert!(volume.scrub(butterfs::scrub::Repair::ReportOnly).is_ok());
}

#[test]
fn volumes_are_made_where_nothing_is_lost() {
    let folder = tempfile::tempdir().expect("a directory");
    let image = folder.path().join("disk.img");
    let small = make_volume(&image, 1 << 20, &MkfsOptions::default());
    assert!(small.is_err_and(|error| error.to_string().contains("too small")));
    assert!(!image.exists(), "what was made for it is gone");
    make_volume(&image, SIZE, &MkfsOptions::default()).expect("a volume");
    assert!(make_volume(&image, SIZE, &MkfsOptions::default()).is_err());

    let other = folder.path().join("other.img");
    std::fs::File::create(&other)
        .and_then(|file| file.set_len(SIZE))
        .expect("a file");
    let both = [&image, &other];
    let refused = make_volume_on(&both, &MkfsOptions::default(), Content::Keep);
    let said = refused.expect_err("it holds a volume").to_string();
    assert!(
        said.contains("disk.img holds a file system (btrfs)"),
        "{said}"
    );
    let made = make_volume_on(&both, &MkfsOptions::default(), Content::Overwrite);
    made.expect("a volume of two devices");
    let volume = Volume::open_all(&both, OpenOptions::default()).expect("it opens");
    volume.write_file("/file", &[3; 100_000]).expect("written");
    // It is in use.
    assert!(Volume::open(&other, OpenOptions::default()).is_err());
    volume.close().expect("it closes");
    assert!(butterfs::check(&other).expect("a check").is_clean());
    assert!(butterfs::check(folder.path().join("none")).is_err());
}

#[test]
fn a_scrub_mends_what_has_another_copy() {
    let bench = Bench::new();
    bench
        .volume
        .write_file("/file", &[5; 200_000])
        .expect("written");
    let bench = bench.again();
    let counts = bench
        .volume
        .scrub(butterfs::scrub::Repair::Rewrite)
        .expect("a scrub");
    assert_eq!(counts.len(), 1);
    assert!(counts[0].is_finished && counts[0].counts.data_bytes >= 200_000);
    assert_eq!(counts[0].counts.uncorrectable_errors, 0);
}
