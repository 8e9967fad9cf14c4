//! Who may register, the same at every door.

use std::collections::BTreeSet;

use crate::domain::id::Token;
use crate::domain::placement::Placement;
use crate::domain::scope::Transport;
use crate::domain::scope::{Namespaces, Order, Scope};
use crate::fleet::Profile;
use crate::proto::worker::Register;

/// The version of the protocol that this program speaks.
const PROTOCOL: u32 = 1;
/// Slots of one worker at most: its tasks in flight fit into memory.
const SLOTS: u32 = 100_000;
/// Characters of a name at most, as the database has it.
const NAME: usize = 200;
/// Task types, and namespaces, of one worker at most.
const NAMES: usize = 10_000;
/// Bytes that the smallest frame of a worker must hold: any task without payload fits.
const SMALLEST_FRAME: usize = 4096;

/// A worker can't come in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{}{message}", .field, if .field.is_empty() { "" } else { ": " })]
pub struct Denied {
    /// What kind of denial it is.
    pub status: Status,
    /// The field at fault; empty where it is none.
    pub field: String,
    /// What would be right.
    pub message: String,
}

/// Kinds of denials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Another registration like it can't be taken either.
    InvalidArgument,
    /// A namespace that it names does not let it in.
    PermissionDenied,
    /// The same registration may be taken later, or by another replica.
    Unavailable,
}

impl Status {
    /// Whether the worker must not try again as it is.
    #[must_use]
    pub fn is_final(self) -> bool {
        match self {
            Self::InvalidArgument | Self::PermissionDenied => true,
            Self::Unavailable => false,
        }
    }
}

impl Denied {
    /// What the worker says is wrong.
    pub fn invalid(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            status: Status::InvalidArgument,
            field: field.into(),
            message: message.into(),
        }
    }

    /// A namespace does not let it in.
    pub fn forbidden(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            status: Status::PermissionDenied,
            ..Self::invalid(field, message)
        }
    }

    /// Nothing is wrong with the worker.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self {
            status: Status::Unavailable,
            field: String::new(),
            message: message.into(),
        }
    }
}

/// A registration that was taken.
#[derive(Clone, Debug)]
pub struct Admitted {
    /// What the worker is.
    pub profile: Profile,
    /// The tasks that it says it has.
    pub resume: Vec<Token>,
    /// What an operator ordered for it.
    pub order: Option<Order>,
    /// What it named that is no token.
    pub unknown: Vec<bytes::Bytes>,
}

/// Judges a registration. `worker_id` is the id to give, `transport` the door; `frame_limit` the dispatcher's own, in
/// bytes.
///
/// # Errors
/// [`Denied`] with the first field at fault.
pub fn admit(
    register: Register,
    worker_id: String,
    transport: Transport,
    frame_limit: usize,
) -> Result<Admitted, Denied> {
    if register.protocol != PROTOCOL {
        return deny(
            "protocol",
            format!(
                "This dispatcher speaks version {PROTOCOL}, not {}.",
                register.protocol
            ),
        );
    }
    name("identity", &register.identity)?;
    names("namespaces", &register.namespaces)?;
    name("task_queue", &register.task_queue)?;
    names("task_types", &register.task_types)?;
    if !register.build_id.is_empty() {
        name("build_id", &register.build_id)?;
    }
    if !register.node.is_empty() {
        name("node", &register.node)?;
    }
    if register.slots == 0 || register.slots > SLOTS {
        return deny(
            "slots",
            format!("A worker has 1 to {SLOTS} slots, not {}.", register.slots),
        );
    }
    let max_frame_bytes = match usize::try_from(register.max_frame_bytes).unwrap_or(usize::MAX) {
        0 => frame_limit,
        bytes if bytes < SMALLEST_FRAME => {
            return deny(
                "max_frame_bytes",
                format!("A worker takes frames of at least {SMALLEST_FRAME} bytes, not {bytes}."),
            );
        }
        bytes => bytes.min(frame_limit),
    };
    let namespaces = if register.namespaces.iter().any(|name| name == "*") {
        Namespaces::All
    } else {
        Namespaces::Only(register.namespaces.into_iter().collect())
    };
    let (mut resume, mut unknown) = (Vec::new(), Vec::new());
    for held in register.resume {
        match Token::from_bytes(&held.token) {
            Ok(token) => resume.push(token),
            Err(_) => unknown.push(held.token),
        }
    }
    let scope = Scope {
        namespaces,
        task_queue: register.task_queue,
        task_types: register.task_types.into_iter().collect::<BTreeSet<_>>(),
        node: register.node,
    };
    let profile = Profile {
        worker_id,
        identity: register.identity,
        scope,
        build_id: register.build_id,
        transport,
        slots: register.slots,
        max_frame_bytes,
    };
    Ok(Admitted {
        profile,
        resume,
        order: None,
        unknown,
    })
}

/// Judges what the worker met in the database: a namespace that requires nodes lets in only workers on those, and a worker
/// that an operator drains comes in only with tasks that it brings along. A registration is taken or denied whole.
///
/// # Errors
/// [`Denied`] with the namespace at fault, or the order.
pub fn check_met(
    admitted: &Admitted,
    placements: &[(String, Placement)],
    order: Option<Order>,
) -> Result<(), Denied> {
    let node = &admitted.profile.scope.node;
    for (namespace, placement) in placements {
        if let Placement::Require(nodes) = placement
            && !nodes.contains(node)
        {
            return Err(Denied::forbidden(
                "node",
                format!("Namespace {namespace:?} requires workers on other nodes than {node:?}."),
            ));
        }
    }
    if order == Some(Order::Drain) && admitted.resume.is_empty() {
        return Err(Denied::unavailable("An operator drains this worker."));
    }
    Ok(())
}

fn names(field: &'static str, list: &[String]) -> Result<(), Denied> {
    if list.is_empty() || list.len() > NAMES {
        return deny(
            field,
            format!("A worker names 1 to {NAMES} of them, not {}.", list.len()),
        );
    }
    list.iter().try_for_each(|one| name(field, one))
}

fn name(field: &'static str, text: &str) -> Result<(), Denied> {
    let length = text.chars().count();
    if (1..=NAME).contains(&length) && !text.chars().any(char::is_control) {
        return Ok(());
    }
    deny(
        field,
        format!("It must be 1 to {NAME} characters without control characters."),
    )
}

fn deny<T>(field: &'static str, message: impl Into<String>) -> Result<T, Denied> {
    Err(Denied::invalid(field, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn register() -> Register {
        Register {
            protocol: 1,
            identity: "w".into(),
            namespaces: vec!["default".into()],
            task_queue: "q".into(),
            task_types: vec!["t".into()],
            slots: 1,
            ..Register::default()
        }
    }

    #[test]
    fn each_field_is_judged() {
        let change = |edit: fn(&mut Register)| {
            let mut changed = register();
            edit(&mut changed);
            admit(changed, "id".into(), Transport::Grpc, 1 << 20)
                .err()
                .map_or_else(String::new, |denied| denied.field)
        };
        assert_eq!(change(|_| ()), "");
        assert_eq!(change(|r| r.node = "n1".into()), "");
        assert_eq!(change(|r| r.protocol = 2), "protocol");
        assert_eq!(change(|r| r.identity = String::new()), "identity");
        assert_eq!(change(|r| r.identity = "a\nb".into()), "identity");
        assert_eq!(change(|r| r.namespaces.clear()), "namespaces");
        assert_eq!(change(|r| r.task_queue = "x".repeat(201)), "task_queue");
        assert_eq!(change(|r| r.task_types = vec![String::new()]), "task_types");
        assert_eq!(change(|r| r.node = "\u{7f}".into()), "node");
        assert_eq!(change(|r| r.slots = 0), "slots");
        assert_eq!(change(|r| r.slots = 100_001), "slots");
        assert_eq!(change(|r| r.max_frame_bytes = 1), "max_frame_bytes");
    }

    #[test]
    fn a_star_is_all_and_the_smaller_frame_limit_holds() {
        let mut wide = register();
        wide.namespaces = vec!["a".into(), "*".into()];
        wide.max_frame_bytes = 1 << 30;
        let admitted = admit(wide, "id".into(), Transport::Grpc, 1 << 20).unwrap();
        assert_eq!(admitted.profile.scope.namespaces, Namespaces::All);
        assert_eq!(admitted.profile.max_frame_bytes, 1 << 20);
    }

    #[test]
    fn a_namespace_that_requires_nodes_denies_the_whole_registration() {
        let mut registered = register();
        registered.node = "n2".into();
        let admitted = admit(registered, "id".into(), Transport::Grpc, 1 << 20).unwrap();
        let on = |node: &str| Placement::Require(BTreeSet::from([node.to_owned()]));
        let met = |placement| check_met(&admitted, &[("default".into(), placement)], None);
        assert_eq!(met(on("n2")), Ok(()));
        assert_eq!(met(Placement::Prefer(BTreeSet::new())), Ok(()));
        let denied = met(on("n1")).unwrap_err();
        assert_eq!(denied.status, Status::PermissionDenied);
        assert!(denied.status.is_final());
    }

    #[test]
    fn a_drained_worker_comes_in_only_with_its_tasks() {
        let mut admitted = admit(register(), "id".into(), Transport::Grpc, 1 << 20).unwrap();
        let denied = check_met(&admitted, &[], Some(Order::Drain)).unwrap_err();
        assert!(!denied.status.is_final());
        assert_eq!(check_met(&admitted, &[], Some(Order::Cordon)), Ok(()));
        admitted.resume = vec!["1.0.1".parse().unwrap()];
        assert_eq!(check_met(&admitted, &[], Some(Order::Drain)), Ok(()));
    }
}
