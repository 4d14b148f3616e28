//! Every kind of damage that the check knows, repaired.
//!
//! The volume is one of the kernel's, with snapshots, small and large files,
//! holes, preallocated space and quotas. After a repair our check and `btrfs
//! check` find nothing, what was readable and right is still so, and a second
//! repair does nothing. `BUTTERFS_DAMAGE=code` runs the damages of one code.

mod commands {
    /// What a command may change; a repair may change nothing of files.
    #[derive(Clone, Copy)]
    pub enum Touched {
        Files(&'static [&'static str]),
        #[allow(dead_code, reason = "the manifest knows both")]
        Names(&'static [&'static str]),
    }
}
#[path = "../../testkit/tests/sealed/manifest.rs"]
#[allow(dead_code, reason = "each test file uses its part")]
mod manifest;
#[path = "../../check/tests/support/mod.rs"]
mod support;

#[path = "../../check/tests/damage/files.rs"]
mod files;
#[path = "../../check/tests/damage/nodes.rs"]
mod nodes;
#[path = "../../check/tests/damage/space.rs"]
mod space;

use butterfs::{BlockDevice, Cleaner, MemoryDevice, OpenOptions, Volume};
use butterfs_check::{DataChecksums as Data, FaultCode, NoProgress};
use butterfs_repair::{Options, Outcome, repair};
use butterfs_testkit::judge::{DataChecksums, Mode, btrfs_check, scratch_dir};
use commands::Touched;
use manifest::Manifest;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use support::image::Image;
use support::volume;

/// A damage of a volume.
pub struct Damage {
    /// The kind of fault that the check must report.
    pub code: FaultCode,
    /// Makes the damage.
    pub make: fn(&mut Image),
}

/// Makes a [`Damage`].
pub const fn damage(code: FaultCode, make: fn(&mut Image)) -> Damage {
    Damage { code, make }
}

/// Kinds that a repair leaves: warnings about what every driver ignores, and
/// damage of what it would need to read.
const LEFT: &[FaultCode] = &[
    FaultCode::DataChecksum,
    FaultCode::InodeCache,
    FaultCode::QgroupVersion,
    FaultCode::RootFlags,
    // A change of the UUID that was cut short: `butterfs tune` ends it.
    FaultCode::SuperblockField,
];

fn options() -> Options {
    let mut options = Options::default();
    options.check.data = Data::Verify;
    options.check.threads = 2;
    options
}

fn read(device: &MemoryDevice) -> Manifest {
    let mut options = OpenOptions {
        commit_interval: Duration::from_secs(3600),
        cleaner: Cleaner::OnDemand,
        ..OpenOptions::default()
    };
    options.store.access = butterfs::Access::ReadOnly;
    let devices = vec![Arc::new(device.snapshot()) as Arc<dyn BlockDevice>];
    match Volume::open_devices(devices, options) {
        Ok(volume) => Manifest::of(&volume),
        Err(_) => Manifest::default(),
    }
}

fn repaired(device: &Arc<MemoryDevice>) -> Result<Outcome, String> {
    let devices = vec![device.clone() as Arc<dyn BlockDevice>];
    repair(devices, &options(), &NoProgress).map_err(|error| error.to_string())
}

/// What is wrong with the repair of a damaged image.
fn judge(path: &Path, truth: &Manifest) -> (Vec<String>, Option<Outcome>) {
    let mut wrong = Vec::new();
    let device = Arc::new(MemoryDevice::load(path).unwrap());
    let before = read(&device);
    let outcome = match repaired(&device) {
        Ok(outcome) => outcome,
        Err(error) => return (vec![format!("refused: {error}")], None),
    };
    let after = read(&device);
    for lost in after.lost(&before, truth, Touched::Files(&[])) {
        wrong.push(format!("WORSE {lost}"));
    }
    for lost in after
        .lost(truth, truth, Touched::Files(&[]))
        .into_iter()
        .take(3)
    {
        println!("    not as it was: {lost}");
    }
    for fault in outcome.after.faults.iter().take(4) {
        wrong.push(format!("left: {fault}"));
    }
    for what in &outcome.after.unchecked {
        wrong.push(format!("unchecked: {what}"));
    }
    device.save(path).unwrap();
    for mode in [Mode::Original, Mode::Lowmem] {
        let theirs = btrfs_check(path, mode, DataChecksums::Verify);
        if !theirs.clean {
            let lines: Vec<&str> = theirs.output.lines().take(12).collect();
            wrong.push(format!("btrfs check {mode:?}: {}", lines.join(" | ")));
        }
    }
    let now = device.snapshot();
    match repaired(&device) {
        Ok(again) if again.is_changed || now.first_difference(&device).is_some() => {
            wrong.push(format!("a second repair: {:?}", again.steps));
        }
        Ok(_) => {}
        Err(error) => wrong.push(format!("a second repair: {error}")),
    }
    (wrong, Some(outcome))
}

#[test]
fn every_damage_is_mended() {
    if !volume::can_make() {
        return;
    }
    let dir = scratch_dir();
    let sound_path = dir.path().join("sound.img");
    volume::make(&sound_path, &["-m", "dup"], "", volume::MIXTURE);
    let script = "btrfs -q quota enable . ; btrfs -q quota rescan -w . ; btrfs -q qgroup create 1/1 . ; btrfs -q qgroup assign 0/256 1/1 . || true; btrfs -q quota rescan -w . || true; sync";
    volume::change(&sound_path, "", script);
    let truth = read(&MemoryDevice::load(&sound_path).unwrap());
    assert!(truth.files() > 700, "{}", truth.files());
    let only = std::env::var("BUTTERFS_DAMAGE").ok();
    let mut all = nodes::all();
    all.extend(space::all());
    all.extend(files::all());
    let mut failed = Vec::new();
    let (mut mended, mut number) = (0, 0);
    for damage in all {
        if only.as_ref().is_some_and(|only| only != damage.code.name()) {
            continue;
        }
        number += 1;
        let path = dir.path().join("damaged.img");
        volume::sparse_copy(&sound_path, &path);
        (damage.make)(&mut Image::open(&path));
        println!("{} (number {number})", damage.code);
        let (wrong, outcome) = judge(&path, &truth);
        for step in outcome.iter().flat_map(|outcome| &outcome.steps) {
            println!("    {step}");
        }
        if wrong.is_empty() {
            mended += 1;
            continue;
        }
        for text in &wrong {
            println!("    ! {text}");
        }
        if !LEFT.contains(&damage.code) || wrong.iter().any(|text| text.starts_with("WORSE")) {
            failed.push(format!("{}: {}", damage.code, wrong[0]));
        }
    }
    println!("{mended} of {number} mended");
    assert!(failed.is_empty(), "not mended:\n{}", failed.join("\n"));
}
