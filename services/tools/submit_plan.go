package tools

import (
	"cmp"
	"context"

	"github.com/weirkeeper/weir/services/agent"
)

// submitPlanID is in all that submit_plan says, by which programs know its payloads.
const submitPlanID = "submit_plan"

// planPath is what submit_plan is called with.
type planPath struct {
	Path string `json:"path"`
}

// planShown is what people are shown. Title and plan are for a host that can read the file.
type planShown struct {
	ToolID string `json:"toolId"`
	Path   string `json:"path"`
}

// PlanDecision is what people say about a plan.
type PlanDecision struct {
	Action   string `json:"action"` // PlanApproved or PlanRejected
	Feedback string `json:"feedback,omitempty"`
	Path     string `json:"path,omitempty"`
	Title    string `json:"title,omitempty"`
	Plan     string `json:"plan,omitempty"`
}

// Actions of a [PlanDecision].
const (
	PlanApproved = "approved"
	PlanRejected = "rejected"
)

// SubmittedPlan is the plan that was decided, for whoever shows the conversation later.
type SubmittedPlan struct {
	Title    string `json:"title,omitempty"`
	Path     string `json:"path"`
	Plan     string `json:"plan,omitempty"`
	Feedback string `json:"feedback,omitempty"`
}

// planResult is what the model is told.
type planResult struct {
	ToolID string `json:"toolId"`
	answer
	SubmittedPlan *SubmittedPlan `json:"submittedPlan,omitempty"`
}

// SubmitPlan submits a plan, which the agent has written to a file, and waits until people have decided about it: the
// call is held as suspended, and is resumed with a [PlanDecision].
//
// The path is all that Weir knows of the file: no service opens it. A host that shows the plan must check the path, as
// it comes from a model: inside of its root, and through no link that leads out.
var SubmitPlan = define(submitPlanID,
	"Submit a finished plan for review, by the path of the file that holds it. Write the plan to the file first, and never pass "+
		"its text. The user approves it, rejects it, or asks for changes; wait for that before you carry anything out.",
	submitPlan, agent.ToolOptions{
		Title: "Submit a plan", Effect: agent.ReadOnly,
		InputSchema: schema(`{"type":"object","properties":{` +
			`"path":{"type":"string","minLength":1,"description":"Path of the file with the plan, as the user's host knows it."}},` +
			`"required":["path"]}`),
		SuspendSchema: schema(`{"type":"object","properties":{"toolId":{"const":"submit_plan"},"path":{"type":"string"},` +
			`"title":{"type":"string"},"plan":{"type":"string"}},"required":["toolId","path"]}`),
		ResumeSchema: schema(`{"type":"object","properties":{"action":{"type":"string","enum":["approved","rejected"]},` +
			`"feedback":{"type":"string"},"path":{"type":"string"},"title":{"type":"string"},"plan":{"type":"string"}},` +
			`"required":["action"]}`),
	})

func submitPlan(_ context.Context, call *agent.Call, in planPath) (planResult, error) {
	switch {
	case call.Resumed():
		d, err := agent.ResumeData[PlanDecision](call)
		if err != nil {
			return planResult{}, err
		}
		return d.result(in.Path), nil
	case outsideAgent(call):
		return planResult{ToolID: submitPlanID, answer: answer{Content: "[Plan submitted for review]\n\nPath: " + in.Path}}, nil
	}
	return planResult{}, call.Suspend(planShown{ToolID: submitPlanID, Path: in.Path})
}

// result tells the model how to go on.
func (d PlanDecision) result(path string) planResult {
	r := planResult{ToolID: submitPlanID, SubmittedPlan: &SubmittedPlan{
		Title: d.Title, Path: cmp.Or(d.Path, path), Plan: d.Plan,
	}}
	switch {
	case d.Action == PlanApproved:
		r.Content = "Plan approved. Proceed with implementation following the approved plan."
	case d.Feedback != "":
		r.SubmittedPlan.Feedback = d.Feedback
		r.Content = "Plan was not approved. The user wants revisions.\n\nUser feedback: " + d.Feedback +
			"\n\nRevise the plan accordingly and submit it again with submit_plan."
	default:
		r.Content = "Plan was not approved. The user will say in the next message what to change. " +
			"Stop now and wait for that message before you revise the plan."
	}
	return r
}
