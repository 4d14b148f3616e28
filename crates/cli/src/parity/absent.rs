//! What the Btrfs tools have and ButterFS does not have, with what to do
//! instead.

/// A verb (or its options, if some are named), and what to use instead.
pub type Absent = (&'static str, &'static [&'static str], &'static str);

const CHECK_READS: &str = "`butterfs check` only reads, and writes nothing to a damaged volume; copy what is left with `butterfs copy -o ro,rescue=all VOLUME:/ DIRECTORY` and make the volume anew";
const CHECK_TREES: &str = "`butterfs check` finds the roots itself, also by the backups in the superblock; `butterfs mount -o ro,rescue=usebackuproot` reads a volume by them";
const TOGETHER: &str = "start it again when the other operation has ended; `butterfs balance status` and `butterfs scrub status` say whether one runs";

/// All of them. A verb's own line has no options.
pub const ABSENT: &[Absent] = &[
    (
        "balance start",
        &["--background", "--bg"],
        "put `&` behind the command, or start it on a mount and watch it with `butterfs balance status`",
    ),
    ("balance start", &["--enqueue"], TOGETHER),
    (
        "check",
        &["-b", "--backup", "-r", "--tree-root", "--chunk-root"],
        CHECK_TREES,
    ),
    (
        "check",
        &["--repair", "--init-csum-tree", "--init-extent-tree"],
        CHECK_READS,
    ),
    (
        "check",
        &["--clear-space-cache", "--clear-ino-cache"],
        "the cache is made anew by `butterfs mount -o clear_cache`",
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
    (
        "convert",
        &[],
        "make a volume with `butterfs mkfs` and copy the files into it with `butterfs copy`; ext4 is not converted in place yet",
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
        "rescue chunk-recover",
        &[],
        "`butterfs check VOLUME` says what is damaged; a lost chunk tree is not made anew here yet",
    ),
    (
        "rescue clear-ino-cache",
        &[],
        "the inode cache of old kernels is never read; it does no harm",
    ),
    (
        "rescue clear-space-cache",
        &[],
        "use `butterfs mount -o clear_cache`",
    ),
    (
        "rescue clear-uuid-tree",
        &[],
        "the kernel makes the tree anew when it mounts with `-o rescan_uuid_tree`",
    ),
    (
        "rescue create-control-device",
        &[],
        "ButterFS uses no control device",
    ),
    (
        "rescue fix-data-checksum",
        &[],
        "copy the file with `butterfs mount -o ro,rescue=ignoredatacsums`, look at it, and write it anew",
    ),
    (
        "rescue fix-device-size",
        &[],
        "`butterfs filesystem resize DEVID:max VOLUME` sets the size, also where the device is shorter than its volume and nothing lies beyond its end",
    ),
    (
        "rescue super-recover",
        &[],
        "the newest good copy of the superblock is used; opening for writing verifies it, and then \
         makes all of them equal or says why not",
    ),
    (
        "restore",
        &[],
        "`butterfs copy VOLUME:/path DIRECTORY` copies files out of a volume that is not mounted; `butterfs mount -o ro,rescue=all` reads what is left of a damaged one",
    ),
];
