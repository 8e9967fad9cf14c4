//! The gates by name.

/// What stands between a task and its start, in the order in which it is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Gate {
    /// There is such a task. Whoever asks for another one is told so at once.
    Exists,
    /// It has not ended.
    Unfinished,
    /// It is due.
    Due,
    /// Nothing holds it.
    Hold,
    /// No pause covers it.
    Pause,
    /// Neither the quota of its namespace nor that of its route is used up.
    Quota,
    /// No rate puts it off, be it that of its namespace, its route or its concurrency key.
    Rate,
    /// Its pin fits the placement of its namespace.
    Placement,
    /// Workers serve it.
    Workers,
    /// One of them answers.
    Reach,
    /// One of these has a free slot.
    Capacity,
    /// No replica has it.
    Unclaimed,
}

impl Gate {
    /// All of them, in their order.
    pub const ALL: [Self; 12] = [
        Self::Exists,
        Self::Unfinished,
        Self::Due,
        Self::Hold,
        Self::Pause,
        Self::Quota,
        Self::Rate,
        Self::Placement,
        Self::Workers,
        Self::Reach,
        Self::Capacity,
        Self::Unclaimed,
    ];

    /// Its stable name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Exists => "exists",
            Self::Unfinished => "unfinished",
            Self::Due => "due",
            Self::Hold => "hold",
            Self::Pause => "pause",
            Self::Quota => "quota",
            Self::Rate => "rate",
            Self::Placement => "placement",
            Self::Workers => "workers",
            Self::Reach => "reach",
            Self::Capacity => "capacity",
            Self::Unclaimed => "unclaimed",
        }
    }
}
