-- Looks which days are over and have nothing unfinished.
select fencepost.note_days()
