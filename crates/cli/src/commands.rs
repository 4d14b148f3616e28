//! The subcommands, one file each.

pub mod balance;
pub mod cat;
pub mod check;
pub mod copy;
pub mod dedupe;
pub mod defragment;
pub mod device;
pub mod filesystem;
pub mod generate;
pub mod inspect;
pub mod lab;
pub mod list;
pub mod mkfs;
pub mod mount;
pub mod property;
pub mod qgroup;
pub mod quota;
pub mod receive;
pub mod reflink;
pub mod rescue;
pub mod resize;
pub mod scrub;
pub mod send;
pub mod served;
pub mod subvolume;
pub mod umount;
