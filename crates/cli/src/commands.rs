//! The subcommands, one file each.

pub mod cat;
pub mod check;
pub mod copy;
pub mod dedupe;
pub mod defragment;
pub mod device;
pub mod filesystem;
pub mod generate;
pub mod info;
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
pub mod send;
pub mod served;
pub mod subvolume;
pub mod umount;
