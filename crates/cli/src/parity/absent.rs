//! What the Btrfs tools have and ButterFS does not have, with what to do
//! instead.

/// A verb (or its options, if some are named), and what to use instead.
pub type Absent = (&'static str, &'static [&'static str], &'static str);

const TOGETHER: &str = "start it again when the other operation has ended; `butterfs balance status` and `butterfs scrub status` say whether one runs";

/// All of them. A verb's own line has no options.
pub const ABSENT: &[Absent] = &[
    ("balance start", &["--enqueue"], TOGETHER),
    (
        "check",
        &["--clear-ino-cache"],
        "`butterfs rescue clear-ino-cache VOLUME` removes it",
    ),
    (
        "check",
        &["--skip-qgroup-accounting"],
        "counting quota groups costs the check little; its faults are named `qgroup-...`",
    ),
    (
        "check",
        &["-E", "--subvol-extents"],
        "`butterfs subvolume du VOLUME` says what each subvolume holds alone and shares",
    ),
    ("device add", &["--enqueue"], TOGETHER),
    ("device remove", &["--enqueue"], TOGETHER),
    ("filesystem resize", &["--enqueue"], TOGETHER),
    (
        "image",
        &["-d"],
        "an image of the metadata holds no data; pack the volume itself sparsely (`tar -S`)",
    ),
    (
        "inspect-internal dump-super",
        &["--bytenr"],
        "`-s 0|1|2` chooses a copy by its number, `-a` prints all",
    ),
    (
        "mkfs",
        &["--reflink"],
        "the content is copied; `butterfs build` makes an image of the same files faster",
    ),
    (
        "receive",
        &["--force-decompress"],
        "compressed extents are unpacked where they cannot be written as they are",
    ),
    ("replace start", &["--enqueue"], TOGETHER),
    (
        "rescue fix-data-checksum",
        &["-r", "--readonly", "-i", "--interactive", "-m", "--mirror"],
        "`butterfs check --check-data-csum VOLUME` names the data; nothing is written to the devices without --commit",
    ),
];
