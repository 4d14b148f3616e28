//! Requests to a mounted Btrfs that have no safe wrapper elsewhere: the
//! kernel's, or a mount of ButterFS.
//!
//! Owns their numbers and layouts, and the unsafe code that pairs them. Other
//! file systems answer ENOTTY or EOPNOTSUPP. The requests that only a mount of
//! ButterFS answers are in [`butterfs_mount`]. Knows nothing of volumes: it
//! asks whoever has one mounted.
//!
//! Source: the documentation's page on ioctls; the interface header
//! linux/btrfs.h.

#![cfg_attr(
    not(test),
    deny(
        clippy::as_conversions,
        clippy::indexing_slicing,
        clippy::unwrap_used,
        clippy::panic
    )
)]

pub mod butterfs_mount;

mod argument;
mod balance;
mod coded;
mod defragment;
mod devices;
mod encoded;
mod extents;
mod inherit;
mod mounted;
mod place;
mod quota;
mod resize;
mod scrub;
mod search;
mod send;
mod sharing;
mod subvolume;
mod subvolume_info;
mod sync;
mod volume_facts;
mod words;

pub use balance::{
    BalanceProgress, balance_progress, cancel_balance, pause_balance, resume_balance, start_balance,
};
pub use defragment::{
    DEFRAGMENT, DEFRAGMENT_COMPRESS, DEFRAGMENT_LEVEL, DEFRAGMENT_UNCOMPRESS, DefragmentRequest,
    defragment,
};
pub use devices::{
    NamedDevice, RemoveAnswer, ReplaceAnswer, ReplaceState, add_device, cancel_replace,
    forget_device, forget_devices, register_device, remove_device, replace_device, replace_state,
};
pub use encoded::{EncodedRequest, encoded_write};
pub use extents::{FileExtent, file_extents, shares_data};
pub use mounted::is_kernel_btrfs;
pub use place::{directory_path, subvolume_place, subvolumes_in};
pub use quota::{
    GroupLimit, QuotaSwitch, Way, allow_reading, change_group, change_relation, limit_group,
    rescan_progress, start_rescan, switch_quotas, wait_for_rescan,
};
pub use resize::resize;
pub use scrub::{ScrubProgress, ScrubWrites, cancel_scrub, scrub_device, scrub_progress};
pub use search::{FoundItem, search_tree};
pub use send::{SEND_COMPRESSED, SEND_NO_DATA, SEND_NO_END, SEND_NO_HEADER, SendCommand, send};
pub use sharing::{CloneRequest, DedupeRequest, Deduped, clone_range, dedupe_range};
pub use subvolume::{
    create_subvolume, delete_subvolume, delete_subvolume_by_id, set_default_subvolume, snapshot,
};
pub use subvolume_info::{
    Changes, SubvolumeInfo, changes, set_changes, set_received, subvolume_info,
};
pub use sync::{sync, sync_any};
pub use volume_facts::{
    Counters, MountedDevice, MountedSpace, MountedVolume, device_counters, label, mounted_device,
    mounted_space, mounted_volume, set_label,
};
