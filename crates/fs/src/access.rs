//! Who may do what with an inode: the one place that decides.
//!
//! Owns the rules: permission bits, POSIX ACLs, the sticky bit, and what
//! capabilities override. It learns about the caller through [`Credentials`],
//! and asks only for what decides. Every request carries the caller's user and
//! group. The other groups and the capabilities may be costly to learn, so they
//! are looked at only if user and group do not permit the access already.
//!
//! Source: acl(5), capabilities(7), `path_resolution(7)`; where tests show that
//! the kernel differs from those, a comment says so.

use crate::names::{Owner, S_IFDIR, S_IFMT};
use crate::{Filesystem, FsError, xattr};
use butterfs_format::InodeId;
use butterfs_format::acl::{Acl, Tag};

const S_ISVTX: u32 = 0o1_000;
const GROUP_BITS: u32 = 0o070;
const EXECUTE_BITS: u32 = 0o111;

/// What somebody wants to do: any of reading, writing and executing (of
/// directories: passing through).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted(u32);

impl Wanted {
    /// Reading.
    pub const READ: Self = Self(4);
    /// Writing.
    pub const WRITE: Self = Self(2);
    /// Executing a file, passing through a directory.
    pub const EXECUTE: Self = Self(1);
    /// Adding names to a directory and removing them.
    pub const CHANGE_NAMES: Self = Self(3);
    /// Listing a directory and looking up its names.
    pub const SEE_NAMES: Self = Self(5);

    const fn within(self, permissions: u32) -> bool {
        self.0 & !permissions == 0
    }

    const fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// Rights beyond those of owner, group and others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    /// Permissions do not count.
    DacOverride,
    /// Reading and passing through need no permission.
    DacReadSearch,
    /// Acts as the owner of every file.
    Owner,
    /// Set-id bits stay when a file changes.
    KeepSetId,
    /// May make files immutable or append-only.
    Immutable,
    /// Administers the volume.
    Administer,
    /// Gives files to others.
    ChangeOwner,
    /// Makes device nodes.
    MakeDevices,
}

/// Somebody who asks.
pub trait Credentials {
    /// User.
    fn user(&self) -> u32;
    /// Whether this is one of the groups.
    fn is_member(&self, group: u32) -> bool;
    /// Whether the capability is there for the whole volume.
    fn has(&self, capability: Capability) -> bool;
    /// Whether the capability holds for a file of this owner. Root of a user
    /// namespace has it for files whose user and group the namespace knows.
    fn has_over(&self, capability: Capability, owner: Owner) -> bool;
    /// Whether [`Capability::Owner`] holds over what belongs to this user. Root
    /// of a user namespace has it over the users that the namespace knows,
    /// whatever the group is.
    fn stands_in_for(&self, user: u32) -> bool;
}

/// The attributes of an inode that decide who may do what.
#[derive(Clone, Copy, Debug)]
pub struct Guarded {
    /// Type and permissions.
    pub mode: u32,
    /// Owner.
    pub owner: Owner,
}

impl Guarded {
    /// Whether `who` may do what is `wanted`. `acl` is asked for the access ACL
    /// only if one could matter.
    ///
    /// # Errors
    /// Those of `acl`.
    pub fn permits<E>(
        self,
        who: &impl Credentials,
        wanted: Wanted,
        acl: impl FnOnce() -> Result<Option<Acl>, E>,
    ) -> Result<bool, E> {
        let permitted = if who.user() == self.owner.uid {
            wanted.within(self.mode >> 6)
        } else {
            // The group's bits are the mask. If the mask is empty, the kernel
            // does not look at the ACL.
            let acl = match self.mode & GROUP_BITS {
                0 => None,
                _ => acl()?,
            };
            match acl {
                Some(acl) => self.acl_permits(&acl, who, wanted),
                None => self.mode_permits(who, wanted),
            }
        };
        Ok(permitted || self.is_overridden(who, wanted))
    }

    fn mode_permits(self, who: &impl Credentials, wanted: Wanted) -> bool {
        let (group, other) = (self.mode >> 3, self.mode);
        match (wanted.within(group), wanted.within(other)) {
            // Membership would change nothing.
            (true, true) => true,
            (false, false) => false,
            (of_group, of_other) => match who.is_member(self.owner.gid) {
                true => of_group,
                false => of_other,
            },
        }
    }

    fn acl_permits(self, acl: &Acl, who: &impl Credentials, wanted: Wanted) -> bool {
        let entries = acl.entries();
        let mask = entries.iter().find(|entry| entry.tag == Tag::Mask);
        let mask = mask.map_or(7, |entry| u32::from(entry.permissions));
        let mut is_of_a_group = false;
        for entry in entries {
            let permissions = u32::from(entry.permissions);
            let group = match entry.tag {
                Tag::User(user) if user == who.user() => return wanted.within(permissions & mask),
                Tag::GroupObject => self.owner.gid,
                Tag::Group(group) => group,
                Tag::Other if !is_of_a_group => return wanted.within(permissions),
                _ => continue,
            };
            if who.is_member(group) {
                if wanted.within(permissions & mask) {
                    return true;
                }
                is_of_a_group = true;
            }
        }
        false
    }

    fn is_overridden(self, who: &impl Credentials, wanted: Wanted) -> bool {
        let directory = self.mode & S_IFMT == S_IFDIR;
        let overrides = |capability| who.has_over(capability, self.owner);
        let only_reads = if directory {
            !wanted.has(Wanted::WRITE)
        } else {
            wanted == Wanted::READ
        };
        if only_reads && overrides(Capability::DacReadSearch) {
            return true;
        }
        let executable = directory || self.mode & EXECUTE_BITS != 0;
        (executable || !wanted.has(Wanted::EXECUTE)) && overrides(Capability::DacOverride)
    }

    /// Whether `who` counts as the owner.
    #[must_use]
    pub fn is_owned_by(self, who: &impl Credentials) -> bool {
        who.user() == self.owner.uid || who.stands_in_for(self.owner.uid)
    }

    /// Whether the sticky bit of this directory keeps `who`, who may change
    /// names in it, from removing the inode that `victim` describes.
    #[must_use]
    pub fn sticks(self, who: &impl Credentials, victim: Self) -> bool {
        self.mode & S_ISVTX != 0
            && who.user() != victim.owner.uid
            && who.user() != self.owner.uid
            && !who.has_over(Capability::Owner, victim.owner)
    }
}

impl Filesystem {
    /// The access ACL of an inode, if it has one.
    ///
    /// # Errors
    /// Reading, damage.
    pub fn access_acl(&self, id: InodeId) -> Result<Option<Acl>, FsError> {
        match self.get_xattr(id, xattr::ACL_ACCESS) {
            Ok(value) => Acl::parse(&value)
                .map(Some)
                .map_err(|_| FsError::Invalid("not a valid POSIX ACL")),
            Err(FsError::NoAttribute) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// Counts how often it was asked for more than a request carries.
    struct Caller {
        user: u32,
        groups: Vec<u32>,
        capability: Option<Capability>,
        /// Users and groups that its namespace knows.
        known: std::ops::Range<u32>,
        asked: Cell<u32>,
    }

    fn caller(user: u32, groups: &[u32]) -> Caller {
        Caller {
            user,
            groups: groups.to_vec(),
            capability: None,
            known: 0..u32::MAX,
            asked: Cell::new(0),
        }
    }

    impl Credentials for Caller {
        fn user(&self) -> u32 {
            self.user
        }

        fn is_member(&self, group: u32) -> bool {
            self.asked.set(self.asked.get() + 1);
            self.groups.contains(&group)
        }

        fn has(&self, capability: Capability) -> bool {
            self.asked.set(self.asked.get() + 1);
            self.capability == Some(capability) && self.known == (0..u32::MAX)
        }

        fn has_over(&self, capability: Capability, owner: Owner) -> bool {
            self.asked.set(self.asked.get() + 1);
            self.capability == Some(capability)
                && self.known.contains(&owner.uid)
                && self.known.contains(&owner.gid)
        }

        fn stands_in_for(&self, user: u32) -> bool {
            self.asked.set(self.asked.get() + 1);
            self.capability == Some(Capability::Owner) && self.known.contains(&user)
        }
    }

    const OWNER: Owner = Owner { uid: 10, gid: 20 };

    fn directory(mode: u32) -> Guarded {
        Guarded {
            mode: S_IFDIR | mode,
            owner: OWNER,
        }
    }

    fn without_acl(who: &Caller, file: Guarded, wanted: Wanted) -> bool {
        let permits = file.permits(who, wanted, || Ok::<_, ()>(None));
        permits.expect("no error")
    }

    fn acl(entries: &[(u16, u16, u32)]) -> Acl {
        let entry = |(tag, permissions, id): &(u16, u16, u32)| {
            let mut bytes = Vec::new();
            bytes.extend(tag.to_le_bytes());
            bytes.extend(permissions.to_le_bytes());
            bytes.extend(id.to_le_bytes());
            bytes
        };
        let value = [2_u32.to_le_bytes().to_vec()]
            .into_iter()
            .chain(entries.iter().map(entry))
            .collect::<Vec<_>>()
            .concat();
        Acl::parse(&value).expect("a valid ACL")
    }

    #[test]
    fn the_first_class_that_fits_decides() {
        let change = Wanted::CHANGE_NAMES;
        let (owner, member, other) = (caller(10, &[20]), caller(11, &[9, 20]), caller(11, &[9]));
        for (mode, expected) in [
            (0o700, [true, false, false]),
            (0o070, [false, true, false]),
            (0o007, [false, false, true]),
            (0o777, [true, true, true]),
            (0o200, [false, false, false]),
        ] {
            let found =
                [&owner, &member, &other].map(|who| without_acl(who, directory(mode), change));
            assert_eq!(found, expected, "{mode:o}");
        }
    }

    #[test]
    fn what_is_permitted_anyway_costs_no_question() {
        let (owner, other) = (caller(10, &[]), caller(11, &[]));
        assert!(without_acl(&owner, directory(0o700), Wanted::CHANGE_NAMES));
        assert!(without_acl(&other, directory(0o755), Wanted::SEE_NAMES));
        assert_eq!((owner.asked.get(), other.asked.get()), (0, 0));
    }

    #[test]
    fn an_acl_is_bounded_by_its_mask() {
        // Owner 7, user 11: 7, group: 0, group 30: 7, mask, other.
        let with = |mask, other| {
            acl(&[
                (1, 7, u32::MAX),
                (2, 7, 11),
                (4, 0, u32::MAX),
                (8, 7, 30),
                (16, mask, u32::MAX),
                (32, other, u32::MAX),
            ])
        };
        let decide = |who: &Caller, mask: u16, other: u16| {
            let mode = 0o700 | u32::from(mask) << 3 | u32::from(other);
            let permits = directory(mode).permits(who, Wanted::CHANGE_NAMES, || {
                Ok::<_, ()>(Some(with(mask, other)))
            });
            permits.expect("no error")
        };
        let (named, group) = (caller(11, &[]), caller(12, &[30]));
        let (owning_group, other) = (caller(12, &[20]), caller(12, &[]));
        for who in [&named, &group] {
            assert!(decide(who, 7, 0) && !decide(who, 5, 7));
        }
        // If a group entry matches and does not permit, the rights of others do
        // not count.
        assert!(!decide(&owning_group, 7, 7) && decide(&other, 7, 7));
        // Both groups match: it is enough that one of them permits.
        assert!(decide(&caller(12, &[20, 30]), 7, 0));
        // An empty mask works as if there were no ACL.
        assert!(decide(&named, 0, 7) && !decide(&owning_group, 0, 7));
    }

    #[test]
    fn capabilities_count_where_the_namespace_knows_the_owner() {
        let mut root = caller(50, &[]);
        root.capability = Some(Capability::DacOverride);
        assert!(without_acl(&root, directory(0), Wanted::CHANGE_NAMES));
        root.known = 50..51;
        assert!(!without_acl(&root, directory(0), Wanted::CHANGE_NAMES));
        assert!(!root.has(Capability::DacOverride));
        let mut reader = caller(50, &[]);
        reader.capability = Some(Capability::DacReadSearch);
        assert!(without_acl(&reader, directory(0), Wanted::SEE_NAMES));
        assert!(!without_acl(&reader, directory(0), Wanted::CHANGE_NAMES));
        // What nobody may execute, nobody executes.
        let mut root = caller(50, &[]);
        root.capability = Some(Capability::DacOverride);
        let file = |mode| Guarded { mode, owner: OWNER };
        assert!(!without_acl(&root, file(0o100_600), Wanted::EXECUTE));
        assert!(without_acl(&root, file(0o100_100), Wanted::EXECUTE));
    }

    #[test]
    fn the_sticky_bit_keeps_names_for_their_owners() {
        let victim = |uid| Guarded {
            mode: 0o100_666,
            owner: Owner { uid, gid: 0 },
        };
        let sticky = directory(0o1777);
        assert!(sticky.sticks(&caller(11, &[]), victim(12)));
        assert!(!sticky.sticks(&caller(12, &[]), victim(12)));
        assert!(!sticky.sticks(&caller(10, &[]), victim(12)));
        assert!(!directory(0o777).sticks(&caller(11, &[]), victim(12)));
        let mut fowner = caller(11, &[]);
        fowner.capability = Some(Capability::Owner);
        assert!(!sticky.sticks(&fowner, victim(12)));
    }

    #[test]
    fn a_namespace_owns_what_its_users_own_whatever_the_group_is() {
        let mut root = caller(0, &[]);
        root.capability = Some(Capability::Owner);
        root.known = 0..15;
        let of = |uid, gid| Guarded {
            mode: S_IFDIR | S_ISVTX | 0o777,
            owner: Owner { uid, gid },
        };
        assert!(of(10, 20).is_owned_by(&root));
        assert!(!of(16, 10).is_owned_by(&root));
        // Removing from a sticky directory needs both.
        assert!(of(99, 99).sticks(&root, of(10, 20)));
        assert!(!of(99, 99).sticks(&root, of(10, 12)));
    }
}
