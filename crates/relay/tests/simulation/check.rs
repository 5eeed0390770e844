//! What must hold after a run: nothing lost, phantom, corrupted, reordered or doubled, and everyone
//! at rest.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use semel_core::{Event, EventId, LaneKey};
use semel_relay::OnDead;

use crate::world::{Notes, World};

pub(crate) fn check(world: &World) -> Vec<String> {
    let notes = world.notes();
    let mut violations: Vec<String> =
        notes.stuck.map(|why| format!("stuck: {why}")).into_iter().collect();
    let arrivals: Vec<Arc<Event>> =
        world.broker.messages().into_iter().map(|message| message.event).collect();
    let mut first_arrival: HashMap<EventId, usize> = HashMap::new();
    for (place, event) in arrivals.iter().enumerate() {
        first_arrival.entry(event.id).or_insert(place);
    }
    check_content(&notes, &arrivals, &mut violations);
    check_arrivals(world, &notes, &first_arrival, &mut violations);
    check_duplicates(world, &notes, arrivals.len() - first_arrival.len(), &mut violations);
    check_effects(world, &notes, &first_arrival, &mut violations);
    violations
}

fn check_content(notes: &Notes, arrivals: &[Arc<Event>], violations: &mut Vec<String>) {
    let committed: HashMap<EventId, &Arc<Event>> =
        notes.committed.iter().map(|event| (event.id, event)).collect();
    for event in arrivals {
        match committed.get(&event.id) {
            None => violations.push(format!("phantom: {} was never committed", event.id)),
            Some(original) if **original != *event => {
                violations.push(format!("corrupted: {}", event.id));
            }
            Some(_) => {}
        }
    }
}

fn check_arrivals(
    world: &World,
    notes: &Notes,
    first_arrival: &HashMap<EventId, usize>,
    violations: &mut Vec<String>,
) {
    let skips = world.plan.settings.on_dead == OnDead::SkipEvent;
    let mut last_of_lane: BTreeMap<LaneKey, usize> = BTreeMap::new();
    for event in &notes.committed {
        let Some(&place) = first_arrival.get(&event.id) else {
            if !notes.discarded.contains(&event.id) {
                violations.push(format!("lost: {} never arrived", event.id));
            }
            continue;
        };
        if event.available_at.is_some_and(|time| notes.arrived_at[&event.id] < time) {
            violations.push(format!("early: {} arrived before its time", event.id));
        }
        // A scheduled event takes its place when it is due; a skipped one when it is retried.
        if event.available_at.is_some() || (skips && notes.died.contains(&event.id)) {
            continue;
        }
        let last = last_of_lane.entry(event.lane_key()).or_insert(place);
        if *last > place {
            violations.push(format!("reordered: {} arrived after a later one", event.id));
        }
        *last = place;
    }
    // Only poison dies: outages and stumbles never use up an event's attempts.
    for id in notes.died.iter().filter(|id| !notes.poison.contains(id)) {
        violations.push(format!("dead without cause: {id}"));
    }
}

fn check_duplicates(world: &World, notes: &Notes, doubles: usize, violations: &mut Vec<String>) {
    let window = world.plan.settings.in_flight_events as u64;
    let allowed = if world.plan.is_quiet() {
        0
    } else {
        notes.unsettled_relays * window + world.outward.tally().repeatable
    };
    if doubles as u64 > allowed {
        violations.push(format!("{doubles} duplicates on the wire, {allowed} can be explained"));
    }
}

fn check_effects(
    world: &World,
    notes: &Notes,
    first_arrival: &HashMap<EventId, usize>,
    violations: &mut Vec<String>,
) {
    let numbers = world.effects.numbers();
    let get = |name: String| numbers.get(&name).copied().unwrap_or(0);
    let buried: BTreeSet<EventId> = world
        .broker
        .dead_letters("payments")
        .into_iter()
        .map(|(message, _)| message.event.id)
        .collect();
    let mut places: BTreeMap<LaneKey, Vec<(usize, i64)>> = BTreeMap::new();
    for event in &notes.committed {
        let id = event.id;
        let Some(&arrival) = first_arrival.get(&id) else { continue };
        let wanted = i64::from(!notes.refused_by_handler.contains(&id));
        let effects = get(format!("effect {id}"));
        if effects != wanted {
            violations.push(format!("{effects} effects instead of {wanted} of {id}"));
        }
        if (wanted == 0) != buried.contains(&id) {
            violations.push(format!("the consumer's dead letter of {id} is wrong"));
        }
        if wanted == 1 {
            places.entry(event.lane_key()).or_default().push((arrival, get(format!("place {id}"))));
        }
    }
    for lane in places.values_mut() {
        lane.sort_unstable();
        if !lane.is_sorted_by_key(|(_, place)| *place) {
            violations.push("effects of a lane took place out of order".into());
        }
    }
}
