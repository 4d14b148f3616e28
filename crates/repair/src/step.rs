//! What a repair does, for its owner to read before anything is committed.

use std::fmt;

macro_rules! steps {
    ($($name:ident = $what:literal, $why:literal;)*) => {
        /// A kind of step.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum StepKind {
            $(#[doc = $what] $name,)*
        }

        impl StepKind {
            /// Every kind.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// What is done.
            #[must_use]
            pub const fn what(self) -> &'static str {
                match self { $(Self::$name => $what,)* }
            }

            /// Why it is done this way.
            #[must_use]
            pub const fn why(self) -> &'static str {
                match self { $(Self::$name => $why,)* }
            }
        }
    };
}

steps! {
    Superblocks = "Write all copies of the superblock anew.", "A good copy says the same.";
    Log = "Throw the fsync log away.", "It cannot be read or replayed.";
    NodeCopies = "Make bad copies of nodes equal to good ones.", "Another copy matches its checksum and the pointer to it.";
    Nodes = "Correct headers of nodes.", "The rest of the node is right, and in its place.";
    PutBack = "Put the items of a leaf back that its pointer names wrongly.", "The leaf matches its checksum, and its items are in no other leaf.";
    Branch = "Make a lost branch of a tree again.", "The extent tree lists the nodes below it, and their keys lie in its range.";
    Emptied = "Make the lost root of a subvolume an empty directory.", "It is damaged in all copies, and no node below it can be read.";
    TreeAnew = "Make a tree anew.", "All that it holds follows from the other trees.";
    PointerDropped = "Drop a pointer to a node that is damaged in all copies.", "Nothing can be read below it; what else the tree holds can be used again.";
    NewBlockGroup = "Make a block group for metadata.", "Those that are there have no free space for the nodes that the repair writes.";
    Chunks = "Make device extents, device items and sizes equal to the chunks.", "The chunks say where everything lies, and everything was found there.";
    Extents = "Make the extent tree equal to what the trees refer to.", "All trees were read, so all references are known.";
    BlockGroups = "Count the used bytes of block groups anew.", "The extents are known.";
    FreeSpace = "Make the free-space tree equal to what the extents leave free.", "The extents are known.";
    Sums = "Count the superblock's used bytes anew.", "The extents are known.";
    Inodes = "Correct attributes of inodes.", "Their items say how many names, bytes and entries they have.";
    Names = "Complete names that one side lacks.", "A name is kept three times: by its hash, by its index, and with its inode.";
    LostAndFound = "Put inodes without a name into lost+found.", "They count names, so nobody deleted them.";
    Orphans = "Mark inodes without names for deletion.", "They count no names, so a deletion of them was not finished.";
    Items = "Remove items that no program can read.", "They are impossible where they are.";
    FileExtents = "Remove file extents that are impossible.", "No program can read the data that they name.";
    Roots = "Complete the references between subvolumes.", "The other side of the reference is there.";
    Uuids = "Make the UUID tree equal to the subvolumes.", "The root items have the UUIDs.";
    Checksums = "Compute missing checksums of data.", "Nothing tells whether these data are what was written.";
    ChecksumsRemoved = "Remove checksums of space that has no data.", "No file refers to the space.";
    Quotas = "Correct the numbers of quota groups, and add groups that subvolumes lack.", "The check counted them.";
}

/// A step of a repair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Its kind.
    pub kind: StepKind,
    /// Where, and how much, in a sentence.
    pub place: String,
    /// What is lost by it, in a sentence; `None` if nothing is.
    pub lost: Option<String>,
}

impl Step {
    pub(crate) fn new(kind: StepKind, place: impl Into<String>) -> Self {
        Self {
            kind,
            place: place.into(),
            lost: None,
        }
    }

    pub(crate) fn losing(mut self, lost: impl Into<String>) -> Self {
        self.lost = Some(lost.into());
        self
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, why) = (self.kind.what(), self.kind.why());
        write!(f, "{what} {} Why: {why}", self.place)?;
        match &self.lost {
            Some(lost) => write!(f, " Lost: {lost}"),
            None => Ok(()),
        }
    }
}
