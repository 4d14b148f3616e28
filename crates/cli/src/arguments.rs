//! The command line.
//!
//! Owns the table of subcommands and the other names by which the binary may be
//! called (mkfs.btrfs, mount.fuse.butterfs, plain `butterfs SOURCE DIR`).

use crate::command_groups::in_groups;
use crate::{commands, output, parity, version};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

/// Btrfs volumes in userspace: make, mount and look into them without a kernel
/// driver and without root.
#[derive(Debug, Parser)]
#[command(
    name = "butterfs",
    version = version::SHORT,
    long_version = version::long(),
    propagate_version = true,
    infer_subcommands = true,
    after_help = "Examples:\n  butterfs mount disk.img /mnt -o compress=zstd\n  butterfs umount /mnt\n  butterfs SOURCE MOUNTPOINT -o OPTIONS   the same as mount\n\nA path in a volume that is not mounted is written VOLUME:/path, where VOLUME is a file or a device. If a file of the host has exactly that name, the host's file is meant.\n\nExit codes:\n  0    success\n  1    failure, or a mistake in the arguments\n  32   mount failed\n  141  nobody reads the output any more\ncheck has its own: 1 it found faults, 2 a mistake in the arguments, 8 it could not check."
)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Mount a volume.
    Mount(commands::mount::Mount),
    /// Unmount a volume and wait until everything is on the device.
    #[command(visible_alias = "unmount")]
    Umount(commands::umount::Umount),
    /// Run a program for which mounts of ButterFS are Btrfs.
    Run(commands::run::Run),
    /// Make a volume in a file or on a block device.
    Mkfs(Box<commands::mkfs::Mkfs>),
    /// Turn ext2, ext3 or ext4 into Btrfs in place, or back.
    Convert(commands::convert::Convert),
    /// Build an image from directories, archives and OCI layouts.
    Build(Box<commands::build::Build>),
    /// Show and change facts about a volume, mounted or not.
    #[command(visible_alias = "fi")]
    Filesystem(commands::filesystem::Filesystem),
    /// Say on one screen what a volume is and holds.
    Info(commands::info::Info),
    /// List files of a volume that is not mounted.
    Ls(commands::list::List),
    /// Write files of a volume that is not mounted to standard output.
    Cat(commands::cat::Cat),
    /// Draw directories of a volume that is not mounted.
    Tree(commands::tree::Tree),
    /// Find files of a volume that is not mounted.
    Find(commands::find::Find),
    /// Sum up the sizes of files of a volume that is not mounted.
    Du(commands::du::Du),
    /// Copy files into, out of or within a volume that is not mounted.
    #[command(visible_alias = "cp")]
    Copy(commands::copy::Copy),
    /// Rename and move files of a volume that is not mounted.
    Mv(commands::mv::Mv),
    /// Remove files from a volume that is not mounted.
    Rm(commands::rm::Rm),
    /// Make directories in a volume that is not mounted.
    Mkdir(commands::mkdir::Mkdir),
    /// Make links in a volume that is not mounted.
    Ln(commands::ln::Ln),
    /// Change permissions in a volume that is not mounted.
    Chmod(commands::chmod::Chmod),
    /// Change owners in a volume that is not mounted.
    Chown(commands::chown::Chown),
    /// Read and write tar archives of files of a volume that is not mounted.
    Tar(commands::tar::Tar),
    /// Copy files and directories so that the copies share their data.
    Reflink(commands::reflink::Reflink),
    /// Share what files have in common, after comparing it.
    Dedupe(commands::dedupe::Dedupe),
    /// Make, delete and look into subvolumes and snapshots.
    #[command(visible_alias = "sub")]
    Subvolume(commands::subvolume::Subvolume),
    /// Switch quotas on and off, and count anew.
    Quota(commands::quota::Quota),
    /// Make, join, limit and show quota groups.
    Qgroup(commands::qgroup::Qgroup),
    /// Get and set properties of subvolumes and files.
    Property(commands::property::Property),
    /// Write read-only snapshots as a stream.
    Send(Box<commands::send::Send>),
    /// Receive streams.
    Receive(commands::receive::Receive),
    /// Add, remove and replace devices of a volume, and show facts about them.
    Device(commands::device::Device),
    /// Read every copy of everything and compare it with its checksum.
    Scrub(commands::scrub::Scrub),
    /// Move the content of block groups elsewhere and free their space.
    Balance(commands::balance::Balance),
    /// Replace a device of a volume by another one.
    Replace(commands::replace::Replace),
    /// Change features, UUIDs and checksums of a volume that is not mounted.
    Tune(commands::tune::Tune),
    /// Make and restore images of a volume's metadata.
    Image(commands::image::Image),
    /// Find out what is left of a damaged volume, and look at and repair what a
    /// crash left.
    Rescue(commands::rescue::Rescue),
    /// Copy files out of a volume that does not open.
    Restore(Box<commands::restore::Restore>),
    /// Find deleted files and older versions of files, and bring them back.
    Undelete(Box<commands::undelete::Undelete>),
    /// Check a volume that is not mounted.
    #[command(visible_alias = "fsck")]
    Check(commands::check::Check),
    /// Show what is on the device.
    #[command(visible_alias = "inspect-internal")]
    Inspect(commands::inspect::Inspect),
    /// Measure file systems side by side.
    Lab(Box<commands::lab::Lab>),
    /// Write completions for a shell.
    Completions(commands::generate::Completions),
    /// Write the manual page of a command.
    Manual(commands::generate::Manual),
}

/// Exit code of a mistake in the arguments, as btrfs(8) has it.
const MISTAKE: u8 = 1;
/// The same for `check`, which returns 1 for faults.
const MISTAKE_OF_CHECK: u8 = 2;

const MOUNT_NAMES: [&str; 4] = [
    "mount.butterfs",
    "mount.fuse.butterfs",
    "mount.fuse3.butterfs",
    "mount.btrfs",
];
const MKFS_NAMES: [&str; 2] = ["mkfs.butterfs", "mkfs.btrfs"];
const CHECK_NAMES: [&str; 1] = ["btrfsck"];
const CONVERT_NAMES: [&str; 2] = ["btrfs-convert", "butterfs-convert"];
const IMAGE_NAMES: [&str; 2] = ["btrfs-image", "butterfs-image"];
const TUNE_NAMES: [&str; 3] = ["btrfstune", "btrfstune.butterfs", "butterfstune"];

/// The names by which a link to the program chooses a command.
pub fn other_names() -> impl Iterator<Item = &'static str> {
    let mount = MOUNT_NAMES.into_iter().chain(MKFS_NAMES);
    let more = CHECK_NAMES.into_iter().chain(IMAGE_NAMES).chain(TUNE_NAMES);
    let more = more.chain(CONVERT_NAMES);
    mount.chain(more)
}

/// Parses the command line. If it asks for help or has a mistake, prints that
/// and gives the exit code.
pub fn from_command_line(words: Vec<OsString>) -> Result<Arguments, ExitCode> {
    let (words, is_quiet) = understood(words);
    if is_quiet && parity::can_be_hushed(&words, &Arguments::command()) {
        output::hush();
    }
    let is_check = words
        .get(1)
        .is_some_and(|word| word == "check" || word == "fsck");
    let mistake = match is_check {
        true => MISTAKE_OF_CHECK,
        false => MISTAKE,
    };
    parse(words, mistake)
}

/// Parses words that begin with the program's own name. `mistake` is the exit
/// code of a mistake.
pub fn parse(words: Vec<OsString>, mistake: u8) -> Result<Arguments, ExitCode> {
    let matches = in_groups(Arguments::command()).try_get_matches_from(&words);
    let parsed = matches.and_then(|matches| Arguments::from_arg_matches(&matches));
    parsed.map_err(|answer| {
        if let Some(sentence) = parity::answer(&words, &answer, &Arguments::command()) {
            note!("butterfs: {sentence}");
            return ExitCode::from(mistake);
        }
        if answer.use_stderr() {
            // The exit code reports the mistake, even if nobody reads the
            // message.
            let _ = answer.print();
            return ExitCode::from(mistake);
        }
        let printed = answer.print().map_err(output::named);
        output::end(printed.map(|()| ExitCode::SUCCESS).map_err(Into::into), 1)
    })
}

/// Filters of a balance follow their letter without a space, and may be empty:
/// `-d`, `-dusage=5`.
fn filters_after_letters(words: &mut [OsString]) {
    if words.get(1).is_none_or(|word| word != "balance") {
        return;
    }
    for word in words.iter_mut().skip(2) {
        let text = word.to_string_lossy();
        let mut letters = text.chars();
        let name = match (letters.next(), letters.next()) {
            (Some('-'), Some('d')) => "data",
            (Some('-'), Some('m')) => "metadata",
            (Some('-'), Some('s')) => "system",
            _ => continue,
        };
        *word = format!("--{name}={}", letters.as_str()).into();
    }
}

/// Compression follows its letter without a space, and may be left out: `-c`,
/// `-czstd`, `-rc`. A compression with a space before it is taken, too.
fn compression_after_letter(words: &mut Vec<OsString>) {
    let below: Vec<String> = words
        .iter()
        .skip(1)
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let below: Vec<&str> = below.iter().map(String::as_str).collect();
    if parity::verb(&below, &Arguments::command()) != "filesystem defragment" {
        return;
    }
    let mut at = 3;
    while let Some(word) = words.get(at) {
        let text = word.to_string_lossy();
        if text == "--" {
            return;
        }
        let letters = text.strip_prefix('-').unwrap_or_default();
        let ends_so = letters.ends_with('c')
            && letters
                .bytes()
                .rev()
                .skip(1)
                .all(|one| b"rfv".contains(&one));
        let next = words.get(at + 1).map(|word| word.to_string_lossy());
        at += 1;
        if ends_so && !next.is_some_and(|next| commands::defragment::is_compression(&next)) {
            words.insert(at, "zlib".into());
        }
    }
}

/// How much is said at a level of the Btrfs tools' `--log`.
fn said_at(level: &str) -> Option<Option<&'static str>> {
    match level {
        "default" | "info" => Some(None),
        "verbose" | "debug" => Some(Some("verbose")),
        "quiet" => Some(Some("quiet")),
        _ => None,
    }
}

/// Takes the options that the Btrfs tools have before the command. Passes on to
/// the command those that it has: -q, -v, --dry-run and --format json, or
/// --json if it does not know --format.
///
/// Says whether there was a -q.
fn with_global(words: &mut Vec<OsString>) -> bool {
    let mut wanted: Vec<&str> = Vec::new();
    while let Some(word) = words.get(1) {
        let word = word.to_string_lossy().into_owned();
        let next = words.get(2).and_then(|next| next.to_str());
        let level = match (word.strip_prefix("--log="), next) {
            (Some(level), _) => Some((1, level)),
            (None, Some(level)) if word == "--log" => Some((2, level)),
            _ => None,
        };
        let level = level.and_then(|(taken, level)| Some((taken, said_at(level)?)));
        let (taken, meant) = match (&word[..], next) {
            _ if level.is_some() => level.unwrap_or_default(),
            ("--dry-run", _) => (1, Some("dry-run")),
            ("-q" | "--quiet", _) => (1, Some("quiet")),
            ("-v" | "--verbose", _) => (1, Some("verbose")),
            ("--format=json", _) => (1, Some("json")),
            ("--format", Some("json")) => (2, Some("json")),
            ("--format=text", _) => (1, None),
            ("--format", Some("text")) => (2, None),
            _ => break,
        };
        wanted.extend(meant);
        words.drain(1..=taken);
    }
    if wanted.is_empty() {
        return false;
    }
    let is_quiet = wanted.contains(&"quiet");
    let whole = Arguments::command();
    let below: Vec<String> = words
        .iter()
        .skip(1)
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let below: Vec<&str> = below.iter().map(String::as_str).collect();
    let (command, count) = parity::command(&below, &whole);
    let at = count + 1;
    for name in wanted {
        let has = |one: &clap::Arg| one.get_long() == Some(name);
        let has_form = |one: &clap::Arg| one.get_long() == Some("format");
        if name == "json" && command.get_arguments().any(has_form) {
            words.insert(at, "--format=json".into());
            continue;
        }
        // An option for more or less output can be dropped, because it promises
        // nothing. An option for another form of output, or for no change, is
        // passed on even if the command then rejects it.
        if ["json", "dry-run"].contains(&name) || command.get_arguments().any(has) {
            words.insert(at, format!("--{name}").into());
        }
    }
    is_quiet
}

/// Puts the subcommand in its place if the name of the program or the form of
/// the command line implies it.
///
/// Says also whether the command is asked to be quiet.
fn understood(mut words: Vec<OsString>) -> (Vec<OsString>, bool) {
    let mut is_quiet = with_global(&mut words);
    filters_after_letters(&mut words);
    compression_after_letter(&mut words);
    let name = words.first().map(Path::new).and_then(Path::file_name);
    let name = name.and_then(|name| name.to_str()).unwrap_or_default();
    let name = name.to_owned();
    let name = &name[..];
    if words.get(1).is_some_and(|word| word == "find") {
        // As find(1) has its options: one minus and a word.
        for word in words.iter_mut().skip(2) {
            let text = word.to_string_lossy().into_owned();
            let is_word = matches!(text.as_bytes(), [b'-', b'a'..=b'z', _, ..]);
            if is_word {
                *word = format!("-{text}").into();
            }
        }
    }
    let implied = if MOUNT_NAMES.contains(&name) {
        Some("mount")
    } else if MKFS_NAMES.contains(&name) {
        Some("mkfs")
    } else if CHECK_NAMES.contains(&name) {
        Some("check")
    } else if TUNE_NAMES.contains(&name) {
        Some("tune")
    } else if IMAGE_NAMES.contains(&name) {
        Some("image")
    } else if CONVERT_NAMES.contains(&name) {
        Some("convert")
    } else {
        plain_mount(&words).then_some("mount")
    };
    if implied == Some("mount") && MOUNT_NAMES.contains(&name) {
        // With this, mount(8) asks its helpers to do everything but the mount.
        for word in words.iter_mut().filter(|word| *word == "-f") {
            *word = "--fake".into();
        }
    }
    if let Some(implied) = implied {
        words[0] = "butterfs".into();
        words.insert(1, implied.into());
    }
    if let [_, word] = &mut words[..]
        && word == "version"
    {
        *word = "--version".into();
    }
    is_quiet |= parity::drop_what_says_nothing(&mut words, &Arguments::command());
    (words, is_quiet)
}

/// `butterfs SOURCE MOUNTPOINT -o ...`: the first word that is not an option is
/// an existing path, and not a subcommand.
fn plain_mount(words: &[OsString]) -> bool {
    let Some(first) = words.get(1) else {
        return false;
    };
    let text = first.to_string_lossy();
    let known = Arguments::command().find_subcommand(&*text).is_some();
    !known && text != "help" && !text.starts_with('-') && Path::new(first).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    fn normalized(words: Vec<OsString>) -> Vec<OsString> {
        understood(words).0
    }

    #[test]
    fn quiet_is_understood_wherever_it_stands() {
        for (line, quiet) in [
            ("btrfs -q subvolume create a", true),
            ("btrfs --log=quiet sub cr a", true),
            ("btrfs subvolume create -q a", true),
            ("btrfs scrub start -Bq a", true),
            ("btrfs balance start -q a", true),
            ("btrfs subvolume create -- -q", false),
            ("btrfs -v subvolume create a", false),
        ] {
            assert_eq!(understood(words(line)).1, quiet, "{line}");
        }
    }

    #[test]
    fn the_table_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn other_names_imply_the_subcommand() {
        let mount = normalized(words("/sbin/mount.fuse.butterfs a b -f -o rw"));
        assert_eq!(mount, words("butterfs mount a b --fake -o rw"));
        let mkfs = normalized(words("mkfs.btrfs -L x a"));
        assert_eq!(mkfs, words("butterfs mkfs -L x a"));
        let check = normalized(words("btrfsck a"));
        assert_eq!(check, words("butterfs check a"));
        let tune = normalized(words("btrfstune -S 1 a"));
        assert_eq!(tune, words("butterfs tune -S 1 a"));
        let plain = normalized(words("butterfs /etc/passwd /mnt"));
        assert_eq!(plain, words("butterfs mount /etc/passwd /mnt"));
        let balance = normalized(words("butterfs balance start -dusage=5 -m a"));
        let plain = words("butterfs balance start --data=usage=5 --metadata= a");
        assert_eq!(balance, plain);
        let global = normalized(words("btrfs -q --format json subvolume list -t a"));
        assert_eq!(global, words("btrfs subvolume list --json -t a"));
        let global = normalized(words("btrfs -v --format text mkfs a"));
        assert_eq!(global, words("btrfs mkfs --verbose a"));
        let global = normalized(words("btrfs --log debug --format=json sub li a"));
        assert_eq!(global, words("btrfs sub li --json a"));
        let global = normalized(words("btrfs --log=quiet --dry-run sub del a"));
        assert_eq!(global, words("btrfs sub del --dry-run a"));
        let unknown = words("btrfs --log loud sub del a");
        assert_eq!(normalized(unknown.clone()), unknown);
        for (given, meant) in [
            ("-c a", "-c zlib a"),
            ("-czstd a", "-czstd a"),
            ("-rc d", "-rc zlib d"),
            ("-c zstd:9 -v a", "-c zstd:9 -v a"),
            ("-v -- -c", "-v -- -c"),
        ] {
            let line = |words_of: &str| words(&format!("btrfs fi defrag {words_of}"));
            assert_eq!(normalized(line(given)), line(meant));
        }
        let find = normalized(words("butterfs find a -name x -0 --uid 3 -size -5k"));
        assert_eq!(
            find,
            words("butterfs find a --name x -0 --uid 3 --size -5k")
        );
        assert_eq!(
            normalized(words("butterfs umount /")),
            words("butterfs umount /")
        );
    }
}
