//! What statements came to, as telemetry counts it: after their commit, and a batch at a time.

use std::sync::Arc;
use std::time::Duration;

use super::hub::Hub;
use super::lanes::Learned;
use crate::domain::id::{RouteId, Token};
use crate::domain::settlement::{Cause, Move};
use crate::domain::task::Claim;
use crate::fleet::Profile;
use crate::store::settle::{Completed, Goes, Returned};
use crate::telemetry::trace::DeliverySpan;
use crate::telemetry::{Tasks, Telemetry};

/// A delivery that was accepted, its route, and the worker and the span where it is done with that.
pub type Accepted = (Token, RouteId, Option<(Arc<Profile>, DeliverySpan)>);

/// What a claim took, and how long until its bodies were there.
pub(super) fn claimed(hub: &Hub, claims: &[Claim], took: Duration) {
    hub.telemetry.claims.claimed(claims.len(), took);
    let routes = claims.iter().map(|claim| claim.route);
    hub.telemetry.count(routes, |tasks| Some(&tasks.claimed));
}

/// What a claim taught.
pub(super) fn learned(hub: &Hub, learned: &Learned) {
    let tenants = &hub.telemetry.tenants;
    for (route, waited) in &learned.first_starts {
        if let Some(route) = hub.routes.one(*route) {
            tenants.first_start(&route.namespace, *waited);
        }
    }
    tenants.aged.inc_by(learned.aged as u64);
    tenants.used_up.inc_by(learned.used_up as u64);
    tenants.throttled.inc_by(learned.throttled as u64);
    tenants.contended.inc_by(learned.lost as u64);
}

/// Tasks that ended with a success, or as cancelled in spite of it.
pub(super) fn completed(telemetry: &Telemetry, completed: &[Completed]) {
    let routes = |cancelled: bool| {
        let tasks = completed.iter();
        let tasks = tasks.filter(move |task| task.cancelled == cancelled);
        tasks.map(|task| task.route)
    };
    telemetry.count(routes(false), |tasks| Some(&tasks.done));
    self::cancelled(telemetry, routes(true));
}

/// Tasks that ended as cancelled.
pub fn cancelled(telemetry: &Telemetry, routes: impl IntoIterator<Item = RouteId>) {
    telemetry.count(routes, |tasks: &Tasks| Some(&tasks.cancelled));
}

/// Tasks that were put back, or ended without a success.
pub fn returned(telemetry: &Telemetry, returned: &[Returned]) {
    if returned.is_empty() {
        return;
    }
    let routes = |is: &dyn Fn(&Returned) -> bool| -> Vec<RouteId> {
        let tasks = returned.iter().filter(|task| is(task));
        tasks.map(|task| task.route).collect()
    };
    for how in Move::ALL {
        let back = routes(&|task| task.goes == Goes::Ready && task.how == how);
        telemetry.count(back, |tasks| tasks.returned(how));
    }
    for cause in Cause::ALL {
        let dead = routes(&|task| task.cause == Some(cause));
        telemetry.count(dead, |tasks| tasks.dead(cause));
    }
    let failed = routes(&|task| task.goes == Goes::Dead);
    telemetry.count(failed, |tasks| Some(&tasks.failed));
    cancelled(telemetry, routes(&|task| task.goes == Goes::Cancelled));
    telemetry.failed(returned.iter().filter_map(|task| task.class.as_deref()));
}
