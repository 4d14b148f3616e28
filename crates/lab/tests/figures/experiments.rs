//! Experiments and file systems as people write them, and the plans that they
//! give.

use butterfs_lab::catalogue::Catalogue;
use butterfs_lab::declaration::Mistake;
use butterfs_lab::experiment::{Experiment, SHIPPED};
use butterfs_lab::filesystem::FileSystems;
use butterfs_lab::machine::Machine;
use butterfs_lab::model::Durability;
use butterfs_lab::plan::{Choice, Plan, plan};
use butterfs_lab::stats::least_blocks;
use std::collections::BTreeSet;

fn planned(text: &str, choice: &Choice) -> Result<Plan, Mistake> {
    let experiment = Experiment::parse("mine.toml", text)?;
    plan(
        &experiment,
        choice,
        &FileSystems::shipped(),
        &Catalogue::shipped(),
        &Machine::here(),
    )
}

fn mistake(text: &str) -> String {
    planned(text, &Choice::default()).unwrap_err().to_string()
}

const GOOD: &str = r#"name = "mine"
repeats = 7
[[cells]]
file-system = ["ext4", "btrfs"]
mount = ["", "noatime"]
workload = "tiny"
concurrency-is-not-here = 1
"#;

#[test]
fn a_wrong_word_is_told_with_its_line_and_the_nearest_right_one() {
    let good = GOOD.replace("concurrency-is-not-here = 1\n", "");
    assert!(planned(&good, &Choice::default()).is_ok());
    let wrong = |from: &str, to: &str| mistake(&good.replace(from, to));
    assert_eq!(
        wrong("file-system =", "file_sytem ="),
        "mine.toml:4: a group of cells has no key `file_sytem`; did you mean `file-system`?"
    );
    assert_eq!(
        wrong("repeats", "repeat"),
        "mine.toml:2: an experiment has no key `repeat`; did you mean `repeats`?"
    );
    assert_eq!(
        wrong("\"btrfs\"", "\"brtfs\""),
        "mine.toml:4: there is no file system `brtfs`; did you mean `btrfs`?"
    );
    assert_eq!(
        wrong("\"tiny\"", "\"tinny\""),
        "mine.toml:6: there is no workload `tinny`; did you mean `tiny`?"
    );
    let parameters = wrong("\"tiny\"", "\"tiny\"\nparameters = { file = 3 }");
    assert_eq!(
        parameters,
        "mine.toml:7: tiny has no parameter `file`; did you mean `files`?"
    );
    let value = wrong("\"tiny\"", "\"tiny\"\nparameters = { files = \"many\" }");
    assert!(
        value.contains("mine.toml:6: tiny: files is a number, not many"),
        "{value}"
    );
    let cache = wrong("mount = [\"\", \"noatime\"]", "cache = \"could\"");
    assert_eq!(
        cache,
        "mine.toml:5: `cache` cannot be `could`; did you mean `cold`?"
    );
    let scale = wrong("repeats = 7", "[scale.small]\ndevise-size = \"1G\"");
    assert_eq!(
        scale,
        "mine.toml:3: a scale has no key `devise-size`; did you mean `device-size`?"
    );
    let size = wrong("repeats = 7", "[scale.small]\ndevice-size = \"1X\"");
    assert_eq!(
        size,
        "mine.toml:3: `device-size` is a size such as 512M, not `1X`"
    );
    let syntax = wrong("repeats = 7", "repeats = = 7");
    assert!(syntax.starts_with("mine.toml:2: "), "{syntax}");
    let rule = format!("{good}[[leave-out]]\nmont = \"noatime\"\n");
    assert_eq!(
        mistake(&rule),
        "mine.toml:8: there is no axis `mont`; did you mean `mount`?"
    );
    let rule = format!("{good}[[leave-out]]\n");
    assert!(mistake(&rule).contains("would leave out everything"));
    assert!(wrong("[\"\", \"noatime\"]", "[]").contains("is empty"));
    assert!(wrong("repeats = 7", "repeats = 0").contains("1 to 1000"));
    // An axis that the workload does not have.
    let axis = wrong("workload", "concurrency = 3\nworkload");
    assert_eq!(axis, "mine.toml:6: the workload tiny has no concurrency");
}

#[test]
fn a_file_system_is_declared_without_code() {
    let mut all = FileSystems::shipped();
    let text = r#"
[[file-system]]
name = "mine"
make = "mkfs.mine {mkfs} {device}"
mount = "mount.mine -o {mount} '{directory} with spaces'"
unmount = "umount {directory}"
durability = "weak"

[[file-system.promise]]
options = "fast"
durability = "unsafe"
"#;
    all.add("mine.toml", text).unwrap();
    let mine = all.get("mine").unwrap();
    assert_eq!(mine.promise("", "noatime"), Durability::Weak);
    assert_eq!(mine.promise("", "noatime,fast"), Durability::Unsafe);
    let mut place = butterfs_lab::filesystem::Place {
        devices: vec!["/dev/a".into()],
        directory: "/mnt/x".into(),
        mkfs: "-n 5 -q".to_owned(),
        ..Default::default()
    };
    assert_eq!(
        mine.make[0].fill(&place),
        ["mkfs.mine", "-n", "5", "-q", "/dev/a"]
    );
    assert_eq!(
        mine.mount[0].fill(&place),
        ["mount.mine", "/mnt/x with spaces"]
    );
    "fast".clone_into(&mut place.mount);
    assert_eq!(
        mine.mount[0].fill(&place),
        ["mount.mine", "-o", "fast", "/mnt/x with spaces"]
    );
    let wrong = |from: &str, to: &str| {
        let mut all = FileSystems::default();
        all.add("mine.toml", &text.replace(from, to))
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        wrong("unmount", "umount"),
        "mine.toml:6: a file system has no key `umount`; did you mean `unmount`?"
    );
    assert_eq!(
        wrong("{device}", "{devise}"),
        "mine.toml:4: nothing is filled in for `{devise}`; did you mean `device`?"
    );
    assert!(wrong("\"unsafe\"", "\"unsave\"").contains("did you mean `unsafe`?"));
    assert!(wrong("spaces'", "spaces").contains("is no command"));
}

#[test]
fn all_that_ships_can_be_planned() {
    let machine = Machine::here();
    let (file_systems, workloads) = (FileSystems::shipped(), Catalogue::shipped());
    for (name, _) in SHIPPED {
        let experiment = Experiment::shipped(name).unwrap().unwrap();
        assert_eq!(experiment.name, *name);
        assert!(!experiment.title.is_empty());
        for scale in &experiment.scales {
            let choice = Choice {
                scale: scale.name.clone(),
                ..Choice::default()
            };
            let plan = plan(&experiment, &choice, &file_systems, &workloads, &machine).unwrap();
            assert!(plan.cells.len() > 5, "{name}");
            if *name == "smoke" {
                continue;
            }
            assert!(plan.blocks.len() >= least_blocks(3), "{name}");
            let defaults = plan.cells.iter().filter(|cell| cell.default);
            let systems: BTreeSet<&str> = defaults.map(|cell| cell.file_system.as_str()).collect();
            for cell in &plan.cells {
                assert!(
                    systems.contains(cell.file_system.as_str()),
                    "{name}: {}",
                    cell.name()
                );
            }
        }
    }
}

#[test]
fn blocks_are_whole_and_seeds_repeat_them() {
    let text = r#"
name = "mine"
repeats = 9
control = "xfs"
[[cells]]
file-system = ["ext4", "xfs", "jfs"]
mount = "noatime"
workload = "tiny"
parameters = { size = ["1k", "4k"] }
[[cells]]
file-system = "btrfs"
devices = [1, 2]
profile = ["", "raid1"]
workload = "tiny"
repeats = 3
[[leave-out]]
devices = 1
profile = "raid1"
"#;
    let one = planned(text, &Choice::default()).unwrap();
    assert_eq!(one, planned(text, &Choice::default()).unwrap());
    // 6 + 3 cells are asked for; the defaults of each system and size are
    // added.
    assert_eq!(one.cells.len(), 6 + 6 + 3);
    assert!(
        one.cells
            .iter()
            .all(|cell| !(cell.devices == 1 && cell.profile == "raid1"))
    );
    for (number, block) in one.blocks.iter().enumerate() {
        let there: BTreeSet<usize> = block.iter().copied().collect();
        assert_eq!(there.len(), block.len(), "each cell once");
        for (index, cell) in one.cells.iter().enumerate() {
            assert_eq!(there.contains(&index), number < 3 || cell.repeats == 9);
        }
    }
    assert_ne!(one.blocks[0], one.blocks[1], "each block has its own order");
    let other = Choice {
        seed: Some(2),
        ..Choice::default()
    };
    assert_ne!(one.blocks, planned(text, &other).unwrap().blocks);
    let more = Choice {
        repeats: Some(12),
        ..Choice::default()
    };
    let more = planned(text, &more).unwrap();
    assert_eq!(more.blocks.len(), 12);
    let control: Vec<_> = one.cells.iter().filter(|cell| cell.control).collect();
    assert_eq!(control.len(), 1);
    assert_eq!(control[0].repeats, 9);
    assert!(control[0].default);
    if Machine::here().kernel_has("xfs") {
        assert_eq!(control[0].file_system, "xfs");
    }
    let jfs = one
        .cells
        .iter()
        .find(|cell| cell.file_system == "jfs")
        .unwrap();
    if !Machine::here().kernel_has("jfs") {
        assert_eq!(jfs.lack.as_deref(), Some("the kernel has no jfs"));
        assert!(
            one.to_text()
                .contains("unavailable: jfs, 4 cells: the kernel has no jfs")
        );
    }
}

#[test]
fn a_plan_finds_what_cannot_be_before_it_is_begun() {
    let text = r#"
name = "mine"
[scale.small]
device-size = "64M"
device = "memory"
[[cells]]
file-system = "ext4"
workload = "tiny"
parameters = { files = 1000, size = "1m" }
"#;
    let large = planned(text, &Choice::default()).unwrap();
    let said = large.problems.join("; ");
    assert!(
        said.contains("the workload writes 1003.9 MiB, the file system has about 48"),
        "{said}"
    );
    let huge = Choice {
        device_size: Some(1 << 50),
        ..Choice::default()
    };
    let said = planned(text, &huge).unwrap().problems.join("; ");
    assert!(said.contains("the devices take 1024 TiB"), "{said}");
    assert!(said.contains("of memory"), "{said}");
    let nowhere = Choice {
        devices: Some(butterfs_lab::plan::Devices::Files("/nowhere".into())),
        ..Choice::default()
    };
    let said = planned(text, &nowhere).unwrap().problems.join("; ");
    assert!(said.contains("there is no directory /nowhere"), "{said}");
    // Seven blocks decide up to three comparisons. A single block decides
    // nothing.
    let quick = Choice {
        repeats: Some(1),
        ..Choice::default()
    };
    let two = text.replace("\"ext4\"", "[\"ext4\", \"ext2\"]");
    let notes = planned(&two, &quick).unwrap().notes.join("; ");
    assert!(
        notes.contains("1 blocks are a screening for 1 comparisons"),
        "{notes}"
    );
    let notes = planned(&two, &Choice::default()).unwrap().notes.join("; ");
    assert!(!notes.contains("comparisons"), "{notes}");
}
