// Command evaluator answers what a Kubernetes API server would say of our CRDs and of writes to their objects.
//
//	evaluator validate FILE...   are the CRDs accepted? exit code 1 when not
//	evaluator eval FILE          one JSON line {"new", "old"} in, one {"errors", "cost", "new"} out
//
// It is the API server's own code (pruning, defaulting, schema validation, CEL with its cost budget) without a server.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	apiservervalidation "k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"
)

func load(path string) *apiextensions.CustomResourceDefinition {
	raw, err := os.ReadFile(path)
	if err != nil {
		panic(err)
	}
	var crd v1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(raw, &crd); err != nil {
		fmt.Println("STRICT", err)
		if err := yaml.Unmarshal(raw, &crd); err != nil {
			panic(err)
		}
	}
	v1.SetDefaults_CustomResourceDefinition(&crd)
	v1.SetDefaults_CustomResourceDefinitionSpec(&crd.Spec)
	var internal apiextensions.CustomResourceDefinition
	if err := v1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(&crd, &internal, nil); err != nil {
		panic(err)
	}
	internal.Status.StoredVersions = []string{"v1alpha1"}
	return &internal
}

type job struct {
	New map[string]interface{} `json:"new"`
	Old map[string]interface{} `json:"old"`
}

func main() {
	ctx := context.Background()
	if os.Args[1] == "validate" {
		bad := 0
		for _, path := range os.Args[2:] {
			crd := load(path)
			errs := validation.ValidateCustomResourceDefinition(ctx, crd)
			fmt.Println(path, len(errs), "errors")
			for _, e := range errs {
				s := e.Error()
				if len(s) > 900 {
					s = s[:300] + " ... " + s[len(s)-600:]
				}
				fmt.Println("  ", s)
			}
			bad += len(errs)
		}
		if bad > 0 {
			os.Exit(1)
		}
		return
	}
	crd := load(os.Args[2])
	props := crd.Spec.Validation
	if props == nil {
		props = crd.Spec.Versions[0].Schema
	}
	structural, err := structuralschema.NewStructural(props.OpenAPIV3Schema)
	if err != nil {
		panic(err)
	}
	validator, _, err := apiservervalidation.NewSchemaValidator(props.OpenAPIV3Schema)
	if err != nil {
		panic(err)
	}
	celv := cel.NewValidator(structural, true, celconfig.PerCallLimit)
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(make([]byte, 1<<20), 1<<28)
	out := bufio.NewWriter(os.Stdout)
	for in.Scan() {
		var j job
		if err := utiljson.Unmarshal(in.Bytes(), &j); err != nil {
			panic(err)
		}
		prep := func(o map[string]interface{}) {
			pruning.Prune(o, structural, true)
			defaulting.PruneNonNullableNullsWithoutDefaults(o, structural)
			defaulting.Default(o, structural)
		}
		prep(j.New)
		if j.Old != nil {
			prep(j.Old)
		}
		var errs field.ErrorList
		errs = append(errs, apiservervalidation.ValidateCustomResource(nil, j.New, validator)...)
		errs = append(errs, listtype.ValidateListSetsAndMaps(nil, structural, j.New)...)
		before := int64(celconfig.RuntimeCELCostBudget)
		var old interface{}
		if j.Old != nil {
			old = j.Old
		}
		cerrs, left := celv.Validate(ctx, nil, structural, j.New, old, before)
		list := []string{}
		for _, e := range errs {
			list = append(list, "schema "+e.Error())
		}
		for _, e := range cerrs {
			list = append(list, "cel "+strings.TrimSpace(e.Error()))
		}
		b, _ := json.Marshal(map[string]interface{}{"errors": list, "cost": before - left, "new": j.New})
		out.Write(b)
		out.WriteByte('\n')
		out.Flush()
	}
}
